"""Every cause says what proves or supports it, and which causes would look the same (docs/explanation/proof.md)."""

from __future__ import annotations

import pytest
from cause_keys import NO_HISTORY

from harness.parity.causes.family import CauseFamily
from harness.parity.causes.proof import LIVE, RECORDINGS
from harness.parity.causes.registry import families
from harness.parity.rivals import told_apart
from reports.model import Cause, Proof

FAMILIES = families()
PROOFS = [Proof("undo it", 100, 0, "tokens", on) for on in (LIVE, RECORDINGS)]


def proofs(family: CauseFamily, *made: Proof, observed: list[str] | None = None) -> list[Proof]:
    every = [str(rival.excluded_by[0]) for rival in family.every_rival]
    cause = Cause.of(family.key(), "candidate", "", proofs=[*made], observed=every if observed is None else observed)
    return told_apart(cause, NO_HISTORY).proofs


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_every_cause_has_a_standard_of_proof_and_its_rivals(name: str) -> None:
    family = FAMILIES[name]
    assert family.proof.stated, "say in `proof` what proves the cause, or what supports it"
    assert bool(family.rivals) != bool(family.alone), "list its rivals, or say in `alone` why there are none"
    assert all(rival.excluded_by for rival in family.every_rival)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_no_cause_keeps_a_proof_that_is_none_by_its_standard(name: str) -> None:
    family = FAMILIES[name]
    assert proofs(family, *PROOFS) == [proof for proof in PROOFS if proof.on in family.proof.on]
    worse = [Proof("undo it", 74, 111, "differences", on) for on in (LIVE, RECORDINGS)]
    assert not proofs(family, *worse)


@pytest.mark.parametrize("name", sorted(name for name, family in FAMILIES.items() if family.every_rival))
def test_a_cause_with_an_open_rival_has_no_proof(name: str) -> None:
    family = FAMILIES[name]
    assert not proofs(family, *PROOFS, observed=[])
    every = [rival.excluded_by[0] for rival in family.every_rival]
    for rival in family.every_rival:
        assert not proofs(family, *PROOFS, observed=[seen for seen in every if seen not in rival.excluded_by])


def test_a_cause_that_tells_a_history_names_what_shows_it() -> None:
    for name in ("STALE_DERIVED", "STALE_KV", "MIXED_VERSION"):
        family = FAMILIES[name]
        assert family.proof.history
        without = [str(rival.excluded_by[0]) for rival in family.rivals]
        assert not proofs(family, *PROOFS, observed=without)


def test_a_family_that_states_no_standard_is_never_proven() -> None:
    assert not CauseFamily("OF_ANOTHER_PACKAGE").proof.accepted(Cause.of(PARTS, "candidate", "", proofs=PROOFS))


PARTS = CauseFamily("OF_ANOTHER_PACKAGE").key()
