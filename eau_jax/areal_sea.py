"""The recipe of AReaL-SEA / EigenData (arXiv:2601.22607) as a study: tasks are synthesised and pass gates, agent and user
are fine-tuned on conversations about them, then the agent is trained against that user by GRPO with dynamic filtering.

    method          what it leaves out of the recipe
    areal_sea       nothing; before its first update it is fine-tuning alone
    no_validation   neither tasks nor conversations are checked before they are learned from and played; the plan stays as
                    it is written, for it evolves by what the gates say: what validation is worth is no_evolution less this
    no_evolution    the plan of the tasks stays as it is written
    no_user_sft     RL with a user that nobody has tuned
    no_filtering    groups that are all solved or all failed stay in the batch

Unchecked data have the tasks that gates reject, if they can be played and scored at all, the agent's conversations that
failed, and as targets the messages that a tool or the user put right. The user's data are checked in all methods. What
validation is worth depends on what the author of the tasks gets wrong: over a domain whose sub-tasks are all sound it is
little. The config files therefore have an author who errs, the same for all methods: `synth.domains.telecom_flaws`.

All methods are evaluated on the held-out tasks of the recipe's own plan. The model of the user is the same for all methods
and seeds, and the data are the same for all seeds; a seed decides the agent's first weights, the order of examples and
tasks, and what is drawn.
"""

import dataclasses
from typing import Any, Callable

from eau_jax.config import Config, ConfigError, Tasks
from eau_jax.config_file import replace, with_algorithm
from eau_jax.core import batching
from eau_jax.core.part import User
from eau_jax.core.types import Task
from eau_jax.study import Study
from eau_jax.study_inputs import data_of, model_of
from eau_jax.synth.datasets import loader
from eau_jax.synth.llm import Llm
from eau_jax.synth.plan import SynthPlan


def areal_sea(plan: SynthPlan, agent: Config, user: Config, speaks: Callable[[str], User], untuned: User,
              **settings: Any) -> Study:
    """The study. What the configs lack, it fills in: files of tasks and conversations, and who the user is.

    Args:
      plan: of the tasks; it evolves, so it has two rounds or more.
      agent: model, budgets, fine-tuning and a GRPO whose `keep_groups` drops groups that teach nothing.
      user: model and fine-tuning of the model of the user; its folder is <root>/<plan.name>_user.
      speaks: the folder of that model -> who speaks through it, such as `role_play` over a `LocalChat`.
      untuned: who stands in for him in no_user_sft.
      settings: of the study: name, seeds, updates and others.

    Raises:
      ConfigError: where an ablation would leave out what is not there.
    """
    if plan.rounds < 2 or not plan.validated:
        raise ConfigError(f"rounds = {plan.rounds}, validated = {plan.validated} of plan {plan.name!r}: the recipe's tasks "
                          f"evolve and are validated, and ablations leave that out; give 2 rounds or more, validated")
    if agent.algorithm.keep_groups is batching.every:
        raise ConfigError("algorithm.keep_groups keeps every group, so no_filtering would be the same method; give "
                          "informative of eau_jax.core.batching")
    fixed = dataclasses.replace(plan, name=f"{plan.name}_fixed", rounds=1, probes=SynthPlan.probes,
                                llm=_without_planner(plan.llm))
    unchecked = dataclasses.replace(fixed, name=f"{plan.name}_unchecked", validated=False)
    user = replace(on(plan, user, "user_sft.jsonl"), {"name": f"{plan.name}_user"})
    return Study(
        data=(plan, fixed, unchecked),
        users=(user,),
        environments={plan.domain.name: replace(on(plan, agent), {"user": speaks(str(model_of(user)))})},
        methods={"areal_sea": lambda config: config,
                 "no_validation": lambda config: of(unchecked, config),
                 "no_evolution": lambda config: of(fixed, config),
                 "no_user_sft": lambda config: replace(config, {"user": untuned}),
                 "no_filtering": lambda config: with_algorithm(config, keep_groups=batching.every)},
        baseline="areal_sea", **settings)


def _without_planner(models: Llm | None) -> Llm | None:
    """The same language models, but for the one that proposes changes of a plan."""
    if models is None or [role for role, _ in models.clients] == ["planner"]:
        return None
    return dataclasses.replace(models, planner=None)


def on(plan: SynthPlan, config: Config, conversations: str = "agent_sft.jsonl") -> Config:
    """The config on the data of a plan: its environment, tasks, and conversations to be fine-tuned on."""
    load, data = loader(plan.domain), data_of(plan)
    train, test = str(data / "rl_train.json"), str(data / "rl_test.json")

    def generate(split: str, count: int, seed: int) -> tuple[Task, ...]:
        return load(test if split == "test" else train)[:count]

    tasks = Tasks(generate=generate, load=load, train_file=train, test_file=test)
    return replace(config, {"env": plan.domain.env, "tasks": tasks, "sft.source": "dialogues",
                            "sft.files": (str(data / conversations),)})


def of(plan: SynthPlan, config: Config) -> Config:
    """The config with the training tasks and conversations of another plan; tokenizer and held-out tasks stay."""
    files = on(plan, config)
    return replace(config, {"tasks.train_file": files.tasks.train_file, "sft.files": files.sft.files})
