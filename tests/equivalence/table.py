"""Prints the table of published implementations in docs/how-to/same.md:

python -m tests.equivalence.table [FIRST LAST] [SECONDS]

Each row is what `apollo-sandbox same RECIPE IMPLEMENTATION --short` prints.  The packages are those of `VERSIONS`, installed
without their dependencies.
"""

import contextlib
import importlib
import importlib.metadata
import io
import sys

import sandbox

ROWS = [
    ("sgd", "SGD(momentum=0.9)"),
    ("nesterov", "SGD(momentum=0.9, nesterov=True)"),
    ("adam", "Adam"),
    ("adamw", "AdamW"),
    ("amsgrad", "Adam(amsgrad=True)"),
    ("adam", "NAdam"),
    ("adam", "Adamax"),
    ("radam", "RAdam"),
    ("adagrad", "Adagrad"),
    ("adadelta", "Adadelta"),
    ("rmsprop", "RMSprop"),
    ("rmsprop-centered", "RMSprop(centered=True)"),
    ("lbfgs", "LBFGS(max_iter=1, history_size=10, tolerance_grad=0, tolerance_change=0)"),
    ("muon", "Muon"),
    ("apollo", "pytorch_optimizer:ApolloDQN(warmup_steps=1, init_lr=0.0)"),
    ("adamw", "pytorch_optimizer:AdamW"),
    ("adabelief", "pytorch_optimizer:AdaBelief(eps=1e-8)"),
    ("adabound", "pytorch_optimizer:AdaBound"),
    ("lion", "pytorch_optimizer:Lion"),
    ("adan", "pytorch_optimizer:Adan"),
    ("ademamix", "pytorch_optimizer:AdEMAMix"),
    ("mars-adamw", "pytorch_optimizer:MARS"),
    ("sm3", "pytorch_optimizer:SM3"),
    ("radam", "pytorch_optimizer:RAdam(degenerated_to_sgd=True)"),
    ("shampoo", "pytorch_optimizer:Shampoo"),
    ("soap", "pytorch_optimizer:SOAP"),
    ("adamw", "heavyball:AdamW"),
    ("sgd", "heavyball:SGD"),
    ("rmsprop", "heavyball:RMSprop"),
    ("ademamix", "heavyball:AdEMAMix"),
    ("soap", "heavyball:SOAP"),
    ("muon", "heavyball:Muon"),
    ("lion", "lion_pytorch:Lion"),
    ("adan", "adan_pytorch:Adan"),
    ("adabelief", "adabelief_pytorch:AdaBelief(eps=1e-8, rectify=False, print_change_log=False)"),
    ("muon", "muon:SingleDeviceMuon"),
    ("apollo", "torch_optimizer:Apollo"),
    ("adabelief", "torch_optimizer:AdaBelief"),
    ("adabound", "torch_optimizer:AdaBound"),
    ("radam", "torch_optimizer:RAdam"),
    ("shampoo", "torch_optimizer:Shampoo"),
    ("adamw", "schedulefree:AdamWScheduleFree"),
    ("adamw", "prodigyopt:Prodigy"),
    ("adamw", "transformers:Adafactor(relative_step=False, scale_parameter=False)"),
]

VERSIONS = ("torch", "pytorch_optimizer", "heavyball", "lion-pytorch", "adan-pytorch", "adabelief-pytorch", "muon-optimizer")
VERSIONS += ("torch-optimizer", "schedulefree", "prodigyopt", "transformers")


def main(first=0, last=len(ROWS), seconds=10.0):
    importlib.import_module("heavyball.utils").compile_mode = None  # what it compiles makes the same steps, later
    print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in VERSIONS))
    print("\n| recipe | implementation | answer |\n|---|---|---|")
    for recipe, implementation in ROWS[int(first) : int(last)]:
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # some print what they do
                answer = sandbox.same(recipe, implementation, seconds=float(seconds))
            text = answer.sentence()
            if answer.explanation is None and not answer.same:
                equal = [o.case.name for o in answer.outcomes if o.equal]
                text += f"; equal in: {', '.join(equal)}" if equal else ""
        except (ValueError, TypeError, RuntimeError) as error:
            text = str(error).splitlines()[0]
        print(f"| {recipe} | `{implementation}` | {text} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
