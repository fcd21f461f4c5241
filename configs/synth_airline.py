"""Tasks for tau2-bench's airline tools with an airline of our own (eau_jax/synth/domains/airline.py): 1,000 tries.

Reproduces   nothing published. No model, no network, no upstream files.
Hardware     1 CPU core.
Time         about a minute.
Expected     about 950 tasks.
Command      eau-jax synth configs/synth_airline.py
"""

from eau_jax.synth.domains.airline import airline
from eau_jax.synth.plan import SynthPlan


def plan() -> SynthPlan:
    return SynthPlan(domain=airline, name="airline", count=1000)
