"""Tasks of the bicycle workshop with language models that make proposals: compositions, wordings, a user's words, opinions,
and conversations of a teacher. What they propose is judged by execution, as in configs/synth_workshop.py.

Reproduces   the roles of AReaL-SEA (arXiv:2601.22607) on the small example; no published number.
Hardware     1 CPU core and an OpenAI-compatible server, here http://localhost:8000/v1 (set BASE_URL and MODEL; a key stands
             in the environment variable OPENAI_API_KEY).
Time         that of the server: about 60 calls a task, most of them the teacher's.
Expected     as many tasks as without models, in other words: what is refused or fails is replaced by a template.
Command      MODEL=Qwen/Qwen3-8B eau-jax synth configs/synth_llm.py --count 20
             eau-jax synth configs/synth_llm.py --count 20 --name again --llm.replay runs/synth/llm/calls.jsonl
"""

import os

from eau_jax.clients.chat import ChatClient
from eau_jax.synth.domains.workshop import workshop
from eau_jax.synth.llm import Llm
from eau_jax.synth.plan import SynthPlan

BASE_URL, MODEL = os.environ.get("BASE_URL", "http://localhost:8000/v1"), os.environ.get("MODEL", "Qwen/Qwen3-8B")


def plan() -> SynthPlan:
    model = ChatClient(BASE_URL, MODEL, max_tokens=2048, timeout_s=120.0, deadline_s=480.0)
    llm = Llm(composer=model, paraphraser=model, validators=(model,), user=model, teacher=model, max_tokens=20_000_000)
    return SynthPlan(domain=workshop, name="llm", count=200, shard=10, llm=llm)
