"""What would make a vacuous bound say something: by what factor it is too large, and from which T or for which η it is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def remedy(terms: Callable[..., dict[str, dict[str, Any]]], name: str, numbers: dict[str, Any], trivial: float) -> str:
    """In words, for the bound `name` of `terms(**numbers)`, which exceeds `trivial` at T = numbers["T"].

    The measured G, D, ‖D_T‖₁, σ and mean β_t stay as they are; another run would have others.
    """
    T, eta = numbers["T"], numbers["eta"]

    def excess(longer: Any = 1.0, larger: Any = 1.0) -> Any:
        """The bound over the trivial one at T·longer and η·larger."""
        changed = numbers | {"T": T * longer, "eta": eta * larger, "betas": numbers["betas"] * longer}
        changed["squares"] = numbers["squares"] * longer**1.5 / larger
        return sum(terms(**changed)[name].values()) / (trivial * longer)

    if not np.isfinite(trivial * excess()):
        return "not finite"
    longer, larger = np.geomspace(1, 1e12, 2401), np.geomspace(1e-8, 1e8, 3201)
    from_T, for_eta = longer[excess(longer=longer) <= 1], eta * larger[excess(larger=larger) <= 1]
    says = f"{excess():.3g} times the trivial bound GDT; "
    says += f"not so from T ≈ {T * from_T[0]:.2g} at this η" if len(from_T) else f"so up to T = {T * longer[-1]:.0e} at this η"
    says += f", or here for η in [{for_eta[0]:.2g}, {for_eta[-1]:.2g}]" if len(for_eta) else ", and here for every η"
    return says + " (with G, D, ‖D_T‖₁ as measured)"
