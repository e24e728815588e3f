"""Networks of the paper's experiments and small relatives, each a plain `torch.nn.Module`, a file an idea."""

from sandbox.tasks.models.lenet import LeNet
from sandbox.tasks.models.lstm import LanguageModel
from sandbox.tasks.models.resnet import ResNet
from sandbox.tasks.models.resnext import ResNeXt50
from sandbox.tasks.models.transformer import Translator

__all__ = ["LanguageModel", "LeNet", "ResNeXt50", "ResNet", "Translator"]
