"""Telecom tasks as tau2-bench's, phones with one to four faults (eau_jax/synth/domains/telecom.py): 1,000 tries.

Nothing is refused: what cannot be mended at all would be solved by an agent that always transfers.

Reproduces   nothing published. No model, no network, no upstream files.
Hardware     1 CPU core.
Time         about three minutes.
Expected     965 of 1,100 are kept (80 seconds with --jobs 2).
Command      eau-jax synth configs/synth_telecom.py
"""

from eau_jax.synth.domains.telecom import telecom
from eau_jax.synth.plan import SynthPlan


def plan() -> SynthPlan:
    return SynthPlan(domain=telecom, name="telecom", count=1000, outcomes={"fulfil": 1.0}, distractors=(0,))
