"""Tasks of a bicycle workshop, the domain to copy (eau_jax/synth/domains/workshop.py): 1,000 tries through all gates.

Reproduces   nothing published; it is the small example. No model, no network.
Hardware     1 CPU core.
Time         about a minute.
Expected     nine in ten are kept, 9,002 of 10,000 (two minutes and a half with --jobs 2).
Command      eau-jax synth configs/synth_workshop.py       (--name large --count 12000 --jobs 2: more than ten thousand)
"""

from eau_jax.synth.domains.workshop import workshop
from eau_jax.synth.plan import SynthPlan


def plan() -> SynthPlan:
    return SynthPlan(domain=workshop, name="workshop", count=1000)
