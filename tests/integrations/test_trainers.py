"""transformers, Lightning and accelerate themselves around recipes; float64, each beside a loop by hand over the same batches."""

import pytest
import torch

import sandbox
from sandbox import integrations

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def library(name):
    """A package, or a skipped test where it is not installed or, as beside a broken torchvision, cannot be imported."""
    return pytest.importorskip(name, exc_type=Exception)


g = torch.Generator().manual_seed(0)
ROWS = [{"input_ids": (x := torch.randint(0, 50, (8,), generator=g)), "labels": x} for _ in range(16)]


def language_model(transformers):
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "n_positions": 8, "n_embd": 16, "n_layer": 1, "n_head": 2}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **dropout, attn_implementation="eager")).double()


def trained(transformers, tmp_path, *, kind=None, **options):
    given = {
        "output_dir": str(tmp_path), "max_steps": 3, "per_device_train_batch_size": 4, "learning_rate": 0.01, "logging_steps": 1,
        "report_to": [], "use_cpu": True, "disable_tqdm": True, "save_strategy": "no", "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0, "weight_decay": 0.0,
    }  # fmt: skip
    pair = options.pop("optimizer_cls_and_kwargs")
    arguments = transformers.TrainingArguments(**{**given, **options})
    model = language_model(transformers)
    trainer = (kind or transformers.Trainer)(model, arguments, train_dataset=ROWS, optimizer_cls_and_kwargs=pair)
    trainer.get_train_dataloader = lambda: torch.utils.data.DataLoader(ROWS, batch_size=4)
    trainer.train()
    return model


def by_hand(transformers, recipe, *, attached=False):
    model = language_model(transformers)
    optimizer = sandbox.Optimizer(model.named_parameters(), recipe, lr=0.01)
    for batch in list(torch.utils.data.DataLoader(ROWS, batch_size=4))[:3]:

        def closure(batch=batch):
            optimizer.zero_grad()
            loss = model(**batch, num_items_in_batch=batch["labels"].numel()).loss  # as the Trainer has it
            if not attached:
                loss.backward()
            return loss

        optimizer.step(closure)
    return model


def close(one, two):
    """float64: 1e-9 for three or four steps of sums in another order."""
    for p, q in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("recipe", ["apollo", "adamw", "muon"])
def test_trainer(recipe, tmp_path):
    transformers = library("transformers")
    expected = by_hand(transformers, recipe)
    pairs = [(sandbox.Optimizer, {"recipe": recipe, "lr": 0.01}), integrations.named(recipe, lr=0.01)]
    if recipe == "adamw":
        pairs = [(kind, {**kwargs, "weight_decay": 0.0, "betas": (0.9, 0.99), "fused": True}) for kind, kwargs in pairs]
        expected = trained(
            transformers, tmp_path, optimizer_cls_and_kwargs=(torch.optim.AdamW, {"lr": 0.01, "betas": (0.9, 0.99)})
        )
    for pair in pairs:
        close(trained(transformers, tmp_path, optimizer_cls_and_kwargs=pair), expected)


def test_second_order_in_the_trainer(tmp_path):
    transformers = library("transformers")
    from sandbox.integrations.transformers import SecondOrder

    kind = type("SecondOrderTrainer", (SecondOrder, transformers.Trainer), {})
    pair = integrations.named("adahessian", lr=0.01)
    close(
        trained(transformers, tmp_path, kind=kind, optimizer_cls_and_kwargs=pair),
        by_hand(transformers, "adahessian", attached=True),
    )
    for options, says in (({"max_grad_norm": 1.0}, "set max_grad_norm=0"), ({"gradient_accumulation_steps": 2}, "steps=1")):
        with pytest.raises(ValueError, match=says):
            trained(transformers, tmp_path, kind=kind, optimizer_cls_and_kwargs=pair, **options)


X = torch.randn(32, 4, generator=g, dtype=torch.float64)
DATA = torch.utils.data.TensorDataset(X, (X.sum(1) > 0).long())


def fitted(bases, recipe, **options):
    lightning = library("lightning")

    class Net(*bases, lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).double()

        def training_step(self, batch, i):
            return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return sandbox.Optimizer(self.named_parameters(), recipe, lr=0.02)

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    net = Net()
    lightning.Trainer(max_steps=4, accelerator="cpu", **quiet, **options).fit(net, torch.utils.data.DataLoader(DATA, 8))
    other = Net()
    return net.cpu(), other


@pytest.mark.parametrize("recipe", ["apollo", "adahessian"])
def test_lightning(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    library("lightning")
    from sandbox.integrations.lightning import SecondOrder

    bases = (SecondOrder,) if recipe == "adahessian" else ()
    net, other = fitted(bases, recipe)
    optimizer = other.configure_optimizers()
    for k, batch in enumerate(torch.utils.data.DataLoader(DATA, 8)):

        def closure(batch=batch, k=k):
            optimizer.zero_grad()
            loss = other.training_step(batch, k)
            if not bases:
                loss.backward()
            return loss

        optimizer.step(closure)
    close(net, other)
    if bases:
        with pytest.raises(ValueError, match="gradient_clip_val and accumulate_grad_batches have no effect"):
            fitted(bases, recipe, gradient_clip_val=0.1)


def test_accelerate():
    accelerate = library("accelerate")
    torch.manual_seed(0)
    model, other = torch.nn.Linear(4, 2).double(), torch.nn.Linear(4, 2).double()
    other.load_state_dict(model.state_dict())
    accelerator = accelerate.Accelerator(cpu=True)
    wrapped, optimizer = accelerator.prepare(model, sandbox.Optimizer(model.named_parameters(), "apollo"))
    alone = sandbox.Optimizer(other.named_parameters(), "apollo")
    for x, y in torch.utils.data.DataLoader(DATA, 8):
        accelerator.backward(torch.nn.functional.cross_entropy(wrapped(x), y))
        torch.nn.functional.cross_entropy(other(x), y).backward()
        for each in (optimizer, alone):
            each.step()
            each.zero_grad()
    close(model, other)
