"""The extra pass of estimators that need information gains: which tokens change, and that the model's own
log-probabilities under them come out."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_learner as small

from eau_jax.algorithms import group, infopo, whiten
from eau_jax.algorithms.view import by_token
from eau_jax.learner import critic, rows
from eau_jax.learner.annotate import annotate
from eau_jax.learner.counterfactual import Answer, answers, content, counterfactual_logprobs, rewritten
from eau_jax.learner.parts import Feedback
from eau_jax.learner.state import SamplerKnobs, default_knobs
from eau_jax.models import transformer

END, START, USER, AGENT, LINE = 60, 61, 62, 63, 59
FEEDBACK = Feedback(glue=((LINE, START, USER, END, START, AGENT), (END, LINE, START, USER, END, START, AGENT)),
                    placeholder=(50, 51))


def dialogue():
    """Two episodes: three turns with answers of three, no and one token; one turn alone. [1, 2]"""
    glue = FEEDBACK.glue[0]
    line = [1, 2, 3, *(10, 11, END), *glue[:3], 20, 21, 22, *glue[3:], *(12, END), *glue, *(13, END)]
    ids = [-1] * 3 + [0] * 3 + [-1] * 9 + [1] * 2 + [-1] * 6 + [2] * 2
    out = small.trajectory(tasks=1, tokens=40, actions=4)
    for array, fill in ((out.tokens, 0), (out.action_ids, -1), (out.sampler_logprobs, 0)):
        array[:] = fill
    out.tokens[0, 0, :len(line)], out.action_ids[0, 0, :len(line)] = line, ids
    out.tokens[0, 1, :5], out.action_ids[0, 1, 3:5] = [1, 2, 3, 14, END], 0
    out.length[0] = len(line), 5
    out.discounts[:] = 1
    out.discounts[0, 0, 2] = out.discounts[0, 1, 0] = 0
    out.rewards[:] = 0
    out.rewards[0, 0, 2] = 1
    return out


def learner(**changes):
    return small.learner(**(dict(advantage=infopo.infopo, critic=critic.no_critic, tasks=1, tokens=40, actions=4,
                                 row_width=48, micro_rows=2, feedback=FEEDBACK, view=by_token,
                                 normalise=whiten.none) | changes))


@pytest.mark.parametrize("said", [[], [5], [5, END, 6], [LINE, 5, AGENT]])
@pytest.mark.parametrize("glue", FEEDBACK.glue, ids=["ended", "cut"])
def test_content_is_what_lies_between_the_glue(said, glue):
    at = glue.index(USER) + 1
    line = np.array([*glue[:at], *said, *glue[at:]], np.int32)
    start, stop = content(line, FEEDBACK)
    assert line[start:stop].tolist() == said and (start == at or not said)


def test_blank_answers_and_first_actions_are_left_out():
    assert answers(dialogue(), FEEDBACK) == [Answer((0, 0), (9, 12), (15, 17))]


def test_the_answer_is_overwritten_in_place():
    trajectory = dialogue()
    episodes = rewritten(trajectory, answers(trajectory, FEEDBACK), FEEDBACK)
    expected = trajectory.tokens[0, 0].copy()
    expected[9:12], expected[17:] = [50, 51, 51], 0
    assert episodes.tokens[0, 0].tolist() == expected.tolist()
    assert episodes.length[0, 0] == 17
    assert np.flatnonzero(episodes.action_ids[0, 0] >= 0).tolist() == [15, 16]


@pytest.mark.slow
def test_log_probabilities_are_the_models_under_the_placeholder():
    made, trajectory = learner(), dialogue()
    params, knobs = small.params(), default_knobs(made)
    annotation, metrics = annotate(made, small.start(made), trajectory, knobs)
    got, count = counterfactual_logprobs(made, params, trajectory, annotation.targets.old_logprobs,
                                         knobs["sampler"].temperature)
    tokens = trajectory.tokens[0, 0, :17].copy()
    tokens[9:12] = [50, 51, 51]
    hidden = transformer.forward(params, small.MODEL, tokens[None], np.arange(17, dtype=np.int32)[None],
                                 np.ones((1, 17), np.int32))[0]
    logp = jax.nn.log_softmax(hidden @ params["embed"].T, axis=-1)
    expected = [logp[t - 1, tokens[t]] for t in (15, 16)]
    np.testing.assert_allclose(got[0, 0, 15:17], expected, atol=1e-5)
    old = np.asarray(annotation.targets.old_logprobs)
    rest = np.ones(40, bool)
    rest[15:17] = False
    assert count == 1 and (got[0, 0, rest] == old[0, 0, rest]).all() and (got[0, 1] == old[0, 1]).all()
    gain = float((old[0, 0, 15:17] - jnp.array(expected)).mean())
    np.testing.assert_allclose(metrics["information_gain"].result(), gain, atol=1e-5)


def test_the_pass_is_made_only_where_it_is_read():
    plain = learner(advantage=group.grpo, feedback=None)
    annotate(plain, small.start(plain), dialogue(), default_knobs(plain))
    assert plain.traces["counterfactual"] == 0
    blind = dataclasses.replace(learner(), feedback=None)
    with pytest.raises(ValueError, match="Feedback"):
        annotate(blind, small.start(blind), dialogue(), default_knobs(blind))


def test_one_trace_over_batches_and_temperatures():
    """An answer that the placeholder repeats tells nothing, whatever the temperature that the policy was sampled at."""
    made = learner(feedback=FEEDBACK._replace(placeholder=(20, 21, 22)))
    knobs = default_knobs(made) | {"sampler": SamplerKnobs(temperature=np.float32(.5))}
    gain = annotate(made, small.start(made), dialogue(), knobs)[1]["information_gain"]
    assert abs(gain.total) < 1e-5 and gain.count == 1
    for seed in range(2):
        trajectory = rows.fit(made, small.trajectory(seed, tasks=1, tokens=40, actions=4))
        annotate(made, small.start(made), trajectory, default_knobs(made))
    assert made.traces["counterfactual"] == made.traces["estimate"] == 1
