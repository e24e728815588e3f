"""Data sets: small ones inside the package, full ones from a folder or, where that is allowed, by download.

    datasets.fashion_mnist()                      # 10,000 / 2,000 / 2,000 images from the package
    datasets.fashion_mnist(full=True)             # 60,000 / 10,000: SANDBOX_DATA, or downloaded with the extra `data`
    datasets.cifar10(folder="~/data")             # cifar-10-batches-py/ inside it, checked by hash
    datasets.speeches(), datasets.verses()            # text from the package, split by speech and by section

Full sets are looked for in `folder`, else in the folder that the environment variable SANDBOX_DATA names.  Their counts and,
where they are published, their hashes are checked; a `DataError` says which check failed.
"""

from sandbox.datasets.folder import DataError
from sandbox.datasets.image_folder import ImageFiles, imagenet
from sandbox.datasets.images import Images, cifar10, fashion_mnist
from sandbox.datasets.text import BillionWords, Pairs, one_billion_words, speeches, verses, wmt14

__all__ = [
    "BillionWords",
    "DataError",
    "ImageFiles",
    "Images",
    "Pairs",
    "cifar10",
    "fashion_mnist",
    "imagenet",
    "one_billion_words",
    "speeches",
    "verses",
    "wmt14",
]
