"""The embedded sampler against the trainer's forward, and its scheduling: nothing shared between sessions may show."""

import asyncio

import jax
import numpy as np
import pytest
from sampler_play import (FILTERED, LENGTH, QWEN2, QWEN3, V, ask, assert_equal, engine, play, prompt, request,
                          trainer_logprobs, weights)

from eau_jax.core import sharding
from eau_jax.models import transformer
from eau_jax.samplers import decode, jax_engine
from eau_jax.samplers.jax_engine import JaxEngine

SESSIONS = range(7)


class Counting(JaxEngine):
    """Counts the tokens that are fed before drawing begins."""

    fed = 0

    def _run_prefill(self, slots, tokens, start, count, window):
        self.fed += int(count.sum())
        super()._run_prefill(slots, tokens, start, count, window)


PLAIN, FILTER = (1.0, {}), (0.6, FILTERED)
MORE = [pytest.param(config, *how, slots, marks=pytest.mark.slow, id=f"{config.family}-{how[0]}-{slots}")
        for config in (QWEN3, QWEN2) for how in (PLAIN, FILTER) for slots in (1, 4, 9)
        if (config, how, slots) not in ((QWEN3, PLAIN, 1), (QWEN3, PLAIN, 4), (QWEN2, FILTER, 4))]


@pytest.mark.parametrize("config, temperature, settings, slots", [
    pytest.param(QWEN3, *PLAIN, 1, id="qwen3-1.0-1"), pytest.param(QWEN3, *PLAIN, 4, id="qwen3-1.0-4"),
    pytest.param(QWEN2, *FILTER, 4, id="qwen2-0.6-4"), *MORE])
def test_log_probabilities_equal_the_trainers(config, temperature, settings, slots):
    """On every action token of seven three-turn sessions, with fewer and with more slots than sessions."""
    params = weights(config)
    played = play(engine(config, slots, **settings), params, temperature, SESSIONS)
    expected = trainer_logprobs(config, params, played, temperature, **settings)
    compared = 0
    for row, one in enumerate(played):
        for begin, action in one.actions:
            end = begin + len(action.tokens)
            np.testing.assert_allclose(action.logprobs, expected[row, begin:end], atol=1e-4)
            compared += len(action.tokens)
    assert compared > 80 and min(expected.min(), -1) < -1  # not a comparison of zeros


def test_the_comparison_sees_a_wrong_temperature():
    params = weights(QWEN3)
    played = play(engine(), params, 1.0, SESSIONS)
    wrong = trainer_logprobs(QWEN3, params, played, 0.9)
    assert max(np.abs(action.logprobs - wrong[row, begin:begin + len(action.tokens)]).max()
               for row, one in enumerate(played) for begin, action in one.actions) > 0.01


def test_greedy_is_the_argmax_of_the_full_forward():
    params = weights(QWEN3)
    for one in play(engine(), params, 0.0, range(3)):
        tokens = np.zeros((1, LENGTH), np.int32)
        tokens[0, :len(one.tokens)] = one.tokens
        positions = np.arange(LENGTH, dtype=np.int32)[None]
        hidden = jax.jit(transformer.forward, static_argnums=1)(params, QWEN3, tokens, positions, np.ones_like(tokens))
        best = np.asarray(hidden[0] @ params["embed"].T).argmax(-1)
        for begin, action in one.actions:
            assert action.tokens.tolist() == best[begin - 1:begin - 1 + len(action.tokens)].tolist()
            assert not action.logprobs.any()


def test_results_do_not_depend_on_the_company_or_the_slots():
    """All together, in pairs, alone, and with evictions after every turn."""
    params, sampler = weights(QWEN3), engine()
    together = play(sampler, params, 1.0, SESSIONS)
    assert_equal([play(sampler, params, 1.0, [number])[0] for number in SESSIONS], together)
    assert_equal(play(engine(slots=1), params, 1.0, reversed(SESSIONS))[::-1], together)


def test_the_same_calls_give_the_same_bits():
    """Also on an engine that has done other work since: a resumed run starts with a new one."""
    used = engine()
    play(used, weights(QWEN3, 5), 0.5, range(9))
    assert_equal(play(used, weights(QWEN3), 1.0, SESSIONS), play(engine(), weights(QWEN3), 1.0, SESSIONS), atol=0)


def test_another_seed_gives_another_action():
    async def run():
        sampler = engine()
        await sampler.push(weights(QWEN3), 0, 1.0)
        seeds = (1, 2, 2 ** 32 + 1, 2 ** 64 - 1)
        return [(await ask(sampler, "a", prompt(1), seed=seed)).tokens.tolist() for seed in seeds]

    actions = asyncio.run(run())
    assert len({tuple(action) for action in actions}) == 4


def test_a_turn_feeds_only_what_is_new():
    async def run():
        sampler = engine(kind=Counting)
        await sampler.push(weights(QWEN3), 0, 1.0)
        first = await ask(sampler, "a", prompt(2))
        fed = [sampler.fed]
        await ask(sampler, "a", np.concatenate([prompt(2), first.tokens, prompt(9, 5)]))
        return [*fed, sampler.fed], first

    fed, first = asyncio.run(run())
    # The last token of a history is fed by the draw. The action's last token has not been fed before: 1 + 5 - 1.
    assert fed == [len(prompt(2)) - 1, len(prompt(2)) - 1 + 5]


def test_an_idle_session_gives_up_its_slot_and_returns():
    """One slot, two sessions in turn: each is fed again from the start, and neither notices."""
    async def run(slots):
        sampler = engine(slots=slots, kind=Counting)
        await sampler.push(weights(QWEN3), 0, 1.0)
        histories, actions = {"a": prompt(2), "b": prompt(3)}, []
        for turn in range(2):
            for name in histories:
                action = await ask(sampler, name, histories[name])
                actions.append(action.tokens.tolist())
                histories[name] = np.concatenate([histories[name], action.tokens, prompt(turn, 3)])
        return actions, sampler.fed

    (shared, often), (own, once) = asyncio.run(run(1)), asyncio.run(run(4))
    assert shared == own and often > once


def test_sessions_that_come_back_at_once_keep_their_slots():
    """Nine sessions on four slots: those that hold one finish first, so every token is fed once."""
    sampler = engine(kind=Counting)
    once = 0
    for one in play(sampler, weights(QWEN3), 1.0, range(9)):
        begins = [begin for begin, _ in one.actions]
        ends = [begin + len(action.tokens) for begin, action in one.actions]
        once += begins[0] - 1 + sum(begin - end for begin, end in zip(begins[1:], ends))
    assert sampler.fed == once


def test_a_waiting_session_is_not_starved_by_a_slow_user():
    """The only slot belongs to a session whose user never answers."""
    async def run():
        sampler = engine(slots=1)
        await sampler.push(weights(QWEN3), 0, 1.0)
        await ask(sampler, "silent", prompt(1))
        return await asyncio.wait_for(ask(sampler, "b", prompt(2)), 60)

    assert asyncio.run(run()).tokens.size


def push_between(kind) -> tuple[list, list]:
    """Turn 1 under one set of weights, turn 2 under others; and turn 2 asked of an engine that never had the first."""
    async def run():
        sampler, fresh = engine(kind=kind), engine()
        await sampler.push(weights(QWEN3, 0), 4, 1.0)
        first = await ask(sampler, "a", prompt(2))
        history = np.concatenate([prompt(2), first.tokens, prompt(9, 5)])
        await sampler.push(weights(QWEN3, 5), 5, 1.0)
        await fresh.push(weights(QWEN3, 5), 5, 1.0)
        second, expected = await ask(sampler, "a", history), await ask(fresh, "a", history)
        assert [first.policy_version, second.policy_version] == [4, 5]
        return second.logprobs.tolist(), expected.logprobs.tolist()

    return asyncio.run(run())


def test_new_weights_drop_the_cache():
    found, expected = push_between(JaxEngine)
    assert found == expected


def test_a_cache_that_outlives_its_weights_is_seen():
    class Stale(JaxEngine):
        def drop_cache(self):
            """Keeps what the old weights computed."""

    found, expected = push_between(Stale)
    assert np.abs(np.array(found[:2]) - np.array(expected[:2])).max() > 1e-3


def test_a_session_goes_on_after_the_cache_was_freed():
    async def run(free):
        sampler = engine()
        await sampler.push(weights(QWEN3), 0, 1.0)
        first = await ask(sampler, "a", prompt(1))
        if free:
            sampler.drop_cache()
            assert sampler._cache is None
        return await ask(sampler, "a", np.concatenate([prompt(1), first.tokens, prompt(9, 5)]))

    assert asyncio.run(run(True)).tokens.tolist() == asyncio.run(run(False)).tokens.tolist()


def test_a_push_waits_for_open_requests_and_later_ones_wait_for_it():
    async def run():
        sampler, done = engine(slots=1), []

        async def one(name):
            completion = await ask(sampler, name, prompt(2))
            done.append((name, completion.policy_version))

        async def replace():
            await sampler.push(weights(QWEN3, 5), 1, 1.0)
            done.append(("push", 1))

        await sampler.push(weights(QWEN3), 0, 1.0)
        # Three requests before the push: two of them have to wait for the slot, and still come first.
        await asyncio.gather(one("a"), one("b"), one("c"), replace(), one("d"))
        return done

    done = asyncio.run(run())
    assert done == [("a", 0), ("b", 0), ("c", 0), ("push", 1), ("d", 1)]


def test_a_changed_history_is_fed_again_from_where_it_differs():
    async def run():
        sampler, fresh = engine(kind=Counting), engine()
        for one in (sampler, fresh):
            await one.push(weights(QWEN3), 0, 1.0)
        history = prompt(1, 20)
        await ask(sampler, "a", history)
        before, changed = sampler.fed, history.copy()
        changed[12] = 4 + (changed[12] + 1) % 50
        found, expected = await ask(sampler, "a", changed), await ask(fresh, "a", changed)
        shorter = await ask(sampler, "a", changed[:9]), await ask(fresh, "b", changed[:9])
        return found, expected, sampler.fed - before, shorter

    found, expected, fed, shorter = asyncio.run(run())
    assert found.tokens.tolist() == expected.tokens.tolist() and fed == 19 - 12
    assert shorter[0].tokens.tolist() == shorter[1].tokens.tolist()


def test_stop_ids_end_the_action_and_belong_to_it():
    async def run():
        sampler = engine()
        await sampler.push(weights(QWEN3), 0, 0.0)
        free = await ask(sampler, "a", prompt(1), max_new_tokens=12, stop_ids=())
        ids = [int(free.tokens[6]), V - 1, 0]
        stopped = await ask(sampler, "b", prompt(1), max_new_tokens=12, stop_ids=tuple(ids))
        return free, stopped

    free, stopped = asyncio.run(run())
    assert (free.stop, free.tokens.size) == ("length", 12)
    first = next(i for i, token in enumerate(free.tokens) if token in (free.tokens[6], V - 1, 0))
    assert stopped.stop == "end_of_turn" and stopped.tokens.tolist() == free.tokens[:first + 1].tolist()
    assert stopped.logprobs.shape == stopped.tokens.shape


@pytest.mark.parametrize("max_new_tokens, history, drawn", [(1, 9, 1), (7, 9, 7), (40, 60, 4), (40, 63, 1)])
def test_the_limit_or_the_end_of_the_cache_ends_the_action(max_new_tokens, history, drawn):
    async def run():
        sampler = engine()
        await sampler.push(weights(QWEN3), 0, 1.0)
        return await ask(sampler, "a", prompt(1, history), max_new_tokens=max_new_tokens, stop_ids=())

    completion = asyncio.run(run())
    assert (completion.stop, completion.tokens.size) == ("length", drawn)
    assert completion.tokens.dtype == np.int32 and completion.logprobs.dtype == np.float32


@pytest.mark.parametrize("bad, message", [
    (request("a", []), r"session 'a': the history has shape \(0,\)"),
    (request("a", prompt(1, 64)), "history of 64 tokens leaves no room for an action in a cache of length 64; raise"),
    (request("a", [1, V]), f"token ids span 1..{V}; the model's are 0..60"),
    (request("a", [-1]), "token ids span -1..-1"),
    (request("a", [1], max_new_tokens=0), "max_new_tokens is 0; it must be at least 1"),
    (request("a", [1], seed=-1), "seed is -1"),
    (request("a", [1], stop_ids=tuple(range(9))), "9 stop ids; at most 8"),
])
def test_bad_requests_are_refused(bad, message):
    async def run():
        sampler = engine()
        await sampler.push(weights(QWEN3), 0, 1.0)
        await sampler.generate([bad])

    with pytest.raises(ValueError, match=message):
        asyncio.run(run())


def test_one_session_has_one_open_request():
    async def run():
        sampler = engine()
        await sampler.push(weights(QWEN3), 0, 1.0)
        with pytest.raises(ValueError, match="session 'a' has an open request already"):
            await sampler.generate([request("a", [1]), request("a", [1])])
        return await ask(sampler, "a", [1])

    assert asyncio.run(run()).tokens.size


@pytest.mark.parametrize("settings, message", [
    ({"slots": 0}, "slots is 0"), ({"top_p": 0.0}, "top_p is 0.0"), ({"top_k": -1}, "top_k is -1"),
    ({"chunks": (0,)}, "chunks is 0"), ({"chunks": ()}, "chunks is empty")])
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        JaxEngine(QWEN3, **{"slots": 2, "length": LENGTH} | settings)


@pytest.mark.parametrize("temperature", [-0.1, float("nan"), float("inf")])
def test_a_bad_temperature_is_refused(temperature):
    with pytest.raises(ValueError, match="temperature is"):
        asyncio.run(engine().push(weights(QWEN3), 0, temperature))


def test_a_request_that_nobody_waits_for_any_more_makes_room():
    """A deadline passes while one request runs and while one waits; the rest goes on, and so does the session."""
    async def run():
        sampler = engine(slots=1)
        await sampler.push(weights(QWEN3), 0, 1.0)
        alone = await ask(sampler, "c", prompt(3), stop_ids=())
        running = asyncio.create_task(ask(sampler, "a", prompt(1), max_new_tokens=40, stop_ids=()))
        waiting = asyncio.create_task(ask(sampler, "b", prompt(2)))
        later = asyncio.create_task(ask(sampler, "c", prompt(3), stop_ids=()))
        while not sampler._running:
            await asyncio.sleep(0)
        running.cancel()
        waiting.cancel()
        again = await ask(sampler, "a", prompt(1), max_new_tokens=3, stop_ids=())
        return alone, await later, again

    alone, later, again = asyncio.run(run())
    assert alone.tokens.tolist() == later.tokens.tolist() and again.tokens.size == 3


def test_release_and_close_answer_open_requests_as_aborted():
    async def run():
        sampler = engine(slots=1)
        await sampler.push(weights(QWEN3), 0, 1.0)
        running = asyncio.create_task(ask(sampler, "a", prompt(1), max_new_tokens=40, stop_ids=()))
        waiting = asyncio.create_task(ask(sampler, "b", prompt(2), max_new_tokens=40, stop_ids=()))
        while sampler._slots.held[0] < len(prompt(1)):
            await asyncio.sleep(0)
        await sampler.release("a")
        first = await running
        await sampler.close()
        second = await waiting
        with pytest.raises(RuntimeError, match="no weights; call push"):
            await ask(sampler, "c", [1])
        await sampler.push(weights(QWEN3), 0, 1.0)
        assert (await ask(sampler, "c", [1])).tokens.size
        return first, second

    first, second = asyncio.run(run())
    assert first.stop == second.stop == "aborted"
    assert 0 < first.tokens.size < 40 and second.tokens.size == 0


def test_one_engine_serves_one_event_loop_after_another():
    sampler, params = engine(), weights(QWEN3)
    expected = play(engine(), params, 1.0, [1])[0].actions
    asyncio.run(sampler.push(params, 0, 1.0))
    history = prompt(1)
    for turn, (_, action) in enumerate(expected):
        found = asyncio.run(ask(sampler, "session-1", history, max_new_tokens=5, seed=1001))
        assert found.tokens.tolist() == action.tokens.tolist()
        history = np.concatenate([history, found.tokens, prompt(100 * turn + 1, 2)])


def test_a_loop_that_is_torn_down_leaves_a_usable_engine():
    sampler = engine()

    async def broken():
        await sampler.push(weights(QWEN3), 0, 1.0)
        asyncio.create_task(ask(sampler, "a", prompt(1), max_new_tokens=40))
        await asyncio.sleep(0)
        raise KeyError("the caller failed")

    with pytest.raises(KeyError):
        asyncio.run(broken())
    assert asyncio.run(ask(sampler, "a", prompt(1))).tokens.size


def test_a_failing_device_call_reaches_everybody_and_the_engine_recovers():
    class Failing(JaxEngine):
        broken = True

        def _run_decode(self, left, window):
            if self.broken:
                raise MemoryError("no room")
            return super()._run_decode(left, window)

    async def run():
        sampler = engine(slots=1, kind=Failing)
        await sampler.push(weights(QWEN3), 0, 1.0)
        results = await asyncio.gather(*(ask(sampler, name, prompt(1)) for name in "ab"), return_exceptions=True)
        assert [type(result) for result in results] == [MemoryError, MemoryError]
        sampler.broken = False
        return await ask(sampler, "a", prompt(1))

    assert asyncio.run(run()).tokens.size


def test_nothing_is_traced_after_warm_up():
    sampler = engine()
    asyncio.run(sampler.push(weights(QWEN3), 0, 1.0))
    sampler.warm_up()
    before = dict(decode.TRACES), decode.decode._cache_size(), decode.prefill._cache_size()
    play(sampler, weights(QWEN3, 5), 0.7, SESSIONS)
    play(sampler, jax.device_put(weights(QWEN3, 6), jax.devices()[0]), 0.0, [3])
    assert (dict(decode.TRACES), decode.decode._cache_size(), decode.prefill._cache_size()) == before


def test_warm_up_keeps_what_is_cached():
    async def run():
        sampler = engine(kind=Counting)
        await sampler.push(weights(QWEN3), 0, 1.0)
        first = await ask(sampler, "a", prompt(1))
        sampler.warm_up()
        history = np.concatenate([prompt(1), first.tokens, prompt(9, 5)])
        before = sampler.fed
        found = await ask(sampler, "a", history), await ask(sampler, "b", history)
        return found, sampler.fed - before, len(history)

    (kept, fresh), fed, size = asyncio.run(run())
    assert kept.tokens.tolist() == fresh.tokens.tolist() and fed == 5 + size - 1


@pytest.mark.slow
@pytest.mark.parametrize("data, fsdp, tensor, slots", [
    (2, 2, 2, 4), pytest.param(4, 1, 2, 3, marks=pytest.mark.slow)])
def test_weights_on_a_mesh_give_the_same_actions(data, fsdp, tensor, slots):
    """Slots that the mesh divides and slots that it does not."""
    params = weights(QWEN3)
    mesh = sharding.make_mesh(data, fsdp, tensor)
    placed = jax.device_put(params, sharding.shardings(params, transformer.logical_axes(QWEN3), mesh))
    sampler = engine(slots=slots)
    found = play(sampler, placed, 1.0, range(3))
    assert len(sampler._cache.k.sharding.device_set) == 8
    assert_equal(found, play(engine(slots=slots), params, 1.0, range(3)))


@pytest.mark.parametrize("lacking, size", [
    (1, 32), (31, 32), (32, 32), (40, 32), (95, 32), (96, 128), (128, 128), (700, 128)])
def test_histories_are_fed_in_sizes_that_waste_little(lacking, size):
    assert jax_engine._chunk(lacking, (32, 128)) == size
