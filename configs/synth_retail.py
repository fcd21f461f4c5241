"""Tasks for tau2-bench's retail tools in a shop of our own (eau_jax/synth/domains/retail.py): 1,000 tries through all gates.

Reproduces   nothing published. No model, no network, no upstream files.
Hardware     1 CPU core.
Time         about a minute.
Expected     997 of 1,000 are kept (84 seconds with --jobs 2).
Command      eau-jax synth configs/synth_retail.py
"""

from eau_jax.synth.domains.retail import retail
from eau_jax.synth.plan import SynthPlan


def plan() -> SynthPlan:
    return SynthPlan(domain=retail, name="retail", count=1000)
