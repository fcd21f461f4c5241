"""Tasks of a bicycle workshop, the domain to copy (eau_jax/synth/domains/workshop.py): 1,000 tries through all gates.

Reproduces nothing; it is the small example. 1 CPU core, a minute. No model, no network.

    eau-jax synth configs/synth_workshop.py
    eau-jax synth configs/synth_workshop.py --name large --count 12000 --jobs 2
"""

from eau_jax.synth.domains.workshop import workshop
from eau_jax.synth.plan import SynthPlan


def plan() -> SynthPlan:
    return SynthPlan(domain=workshop, name="workshop", count=1000)
