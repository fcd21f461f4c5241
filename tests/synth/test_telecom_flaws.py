"""Telecom's wrong sub-tasks: the gates reject each, and what is wrong with it shows in play."""

import pytest

from crafted import code, instance
from eau_jax.synth.domains.telecom import telecom
from eau_jax.synth.domains.telecom_flaws import flawed
from eau_jax.synth.gates import subject
from eau_jax.synth.item import tolerated
from eau_jax.synth.record import Report

DOMAIN = flawed(telecom)


@pytest.mark.parametrize("atoms, rejected", [
    (("airplane@s",), ""), (("airplane@d", "data@d"), ""), (("locked@s",), "UNSOLVABLE"), (("locked@m",), "UNSOLVABLE"),
    (("data@d", "airplane@d", "locked@d"), "UNSOLVABLE"), (("offline@s",), "TRIVIAL0"),
    (("offline@d", "saver@d"), "TRIVIAL0"), (("sms@m", "offline@m"), "TRIVIAL0"), (("locked@s", "offline@s"), "TRIVIAL0")])
def test_gates_reject_just_the_wrong_ones(atoms, rejected):
    made = instance(DOMAIN, *atoms, persona="None")
    assert code(DOMAIN, made) == rejected
    assert tolerated(DOMAIN, made, Report(rejected, "", {})).code == ""       # without validation it is played and scored


def test_what_is_wrong_with_them_shows_in_play():
    def solved(*atoms):
        """After doing nothing, and after the gold plan."""
        this = subject(DOMAIN, instance(DOMAIN, *atoms, persona="None"))
        return [this.run(plan)[1].solved for plan in ((), this.plan)]

    assert solved("airplane@d", "saver@d") == [False, True]
    assert solved("locked@d", "saver@d") == [False, False]      # nothing helps
    assert solved("offline@d", "saver@d") == [True, False]      # doing nothing is right, and mending is wrong


def test_no_complaint_is_mixed_with_another():
    letter = lambda name: name.partition("@")[2]
    wrong = [atom for atom in DOMAIN.atoms if atom.id.partition("@")[0] in ("locked", "offline")]
    assert len(wrong) == 6
    for atom in wrong:
        others = {other.id for other in DOMAIN.atoms if letter(other.id) != letter(atom.id)}
        assert others <= atom.conflicts and not ({each.id for each in wrong} - others) & atom.conflicts
