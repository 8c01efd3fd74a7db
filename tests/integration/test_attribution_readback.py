"""What an embedded engine holds, read back: planted faults that only this tells apart, and their controls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from bench_lab import Lab
from cause_keys import NO_HISTORY

from harness.parity.attribution import live, reference
from harness.parity.attribution.attribute import _locate
from harness.parity.attribution.merge import _proven
from harness.parity.attribution.outcome import Attribution
from harness.parity.causes.registry import family
from harness.parity.interventions.situation import Situation
from harness.parity.rivals import open_rivals, told_apart
from scenarios.bench.readback import DECODED
from scenarios.planted.differences import inside
from scenarios.settings import Sampling

ASKED = Sampling(max_tokens=12)
QUERY, DOWN = "model.layers.1.self_attn.q_proj.weight", "model.layers.1.mlp.down_proj.weight"


def synced(lab: Lab, plant: dict[str, Any]) -> Situation:
    """An engine with this plant after a sync of the learner's weights, read again."""
    s = lab.situation(ASKED, engine=plant)
    s.bench.sync("candidate")
    s.symptoms = s.bench.read("candidate", again=True)
    return s


def search(s: Situation, *, restarts: bool = False) -> list[str]:
    reference.search(s)
    live.search(s, restarts=restarts, then=reference.search)
    return [str(one.cause) for one in s.named]


def unexcluded(s: Situation) -> list[str]:
    """Rivals of the named causes that nothing on the bench excludes. A recording tells the history."""
    causes, _ = _proven([], Attribution(named=s.named))
    return [rival.cause for one in causes for rival in open_rivals(one) if rival in family(one.key).rivals]


def test_a_sound_engine_holds_its_learners_tensors_and_the_configurations_buffers(lab: Lab) -> None:
    s = synced(lab, {})
    held = s.bench.held("candidate")
    assert held.all_equal and held.equal > 20 and held.of_buffers("equal") and not held.of_buffers("differs")
    assert not s.symptoms.total


@pytest.mark.parametrize(("how", "said"), [("permuted", "its rows permuted"), ("scaled", "altered again")])
def test_a_tensor_that_is_altered_while_it_is_loaded(lab: Lab, how: str, said: str) -> None:
    s = synced(lab, {"misloaded": {"names": [QUERY], "how": how}})
    assert s.symptoms.of("scores")
    assert search(s) == [f"WEIGHTS({QUERY})"] and not s.symptoms.total
    assert said in s.named[0].summary and s.named[0].proof.after == 0 and not unexcluded(s)


def test_a_tensor_that_the_engine_keeps_refusing_is_stale_and_not_derived(lab: Lab) -> None:
    s = lab.situation(ASKED, engine={"misloaded": {"names": [DOWN], "how": "refused"}})
    engine = s.bench._stands["candidate"].session._target._bare  # type: ignore[attr-defined]
    with torch.no_grad():
        engine.model.get_parameter(DOWN).mul_(1.5)
    s.bench.sync("candidate")
    s.symptoms = s.bench.read("candidate")
    assert search(s, restarts=True) == [f"STALE_WEIGHTS({DOWN})"] and not s.symptoms.total
    assert "refuses" in s.named[0].summary and not unexcluded(s)


def test_a_spoilt_rotary_cache_is_a_buffer_and_no_tensor(lab: Lab) -> None:
    s = synced(lab, {"rotary": {"by": 1.05}})
    assert s.symptoms.of("scores")
    names = search(s, restarts=True)
    assert len(names) == 1 and names[0].startswith("STALE_DERIVED(") and "inv_freq" in names[0]
    assert not s.symptoms.total and not unexcluded(s)


def test_a_kept_copy_is_derived_where_every_tensor_was_read_back(lab: Lab) -> None:
    s = lab.situation(ASKED)
    engine = s.bench._stands["candidate"].session._target._bare  # type: ignore[attr-defined]
    with torch.no_grad():
        norm = engine.model.get_parameter("model.norm.weight")
        norm.mul_(1.5)
        inside.keep(engine.model, ["model.norm"])
        norm.div_(1.5)
    s.symptoms = s.bench.read("candidate")
    assert search(s, restarts=True) == ["STALE_DERIVED"]
    assert not s.symptoms.total and not unexcluded(s)


def test_what_cannot_be_read_back_is_no_proof(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same engine where it does not show what it holds: derived or refused, nobody knows, and both are listed."""
    s = lab.situation(ASKED, engine={"misloaded": {"names": [DOWN], "how": "refused"}})
    session = s.bench._stands["candidate"].session._target  # type: ignore[attr-defined]
    with torch.no_grad():
        session._bare.model.get_parameter(DOWN).mul_(1.5)
    monkeypatch.setattr(session, "held", lambda order: None)
    s.symptoms = s.bench.read("candidate")
    assert search(s, restarts=True) == ["STALE_DERIVED"]
    causes, _ = _proven([], Attribution(named=s.named))
    told = told_apart(causes[0], NO_HISTORY)
    assert not told.proofs and "not told apart from STALE_WEIGHTS and WEIGHTS" in told.evidence


def test_tensors_in_each_others_place_are_said_to_be(lab: Lab) -> None:
    names = ["model.layers.1.mlp.gate_proj.weight", "model.layers.1.mlp.up_proj.weight"]
    s = synced(lab, {"names_exchanged": {"names": names, "from": 0}})
    assert sorted(search(s)) == [f"WEIGHTS({one})" for one in names]
    assert all("the learner's model.layers.1.mlp" in one.summary for one in s.named)


def forgetful(decoder: Any, inputs: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A hook that hides the first token of the prompt from every token that is decoded."""
    mask = named.get("attention_mask")
    if mask is None or mask.shape[-1] == named["position_ids"].shape[-1]:  # scoring, or the prompt
        return inputs, named
    return inputs, named | {"attention_mask": torch.cat([torch.zeros_like(mask[:, :1]), mask[:, 1:]], dim=-1)}


def test_attention_that_reads_other_keys_than_there_are_computes_otherwise(lab: Lab) -> None:
    s, found = lab.situation(ASKED), Attribution()
    engine = s.bench._stands["candidate"].session._target._bare  # type: ignore[attr-defined]
    sound = s.bench.keys_read("candidate", 0)
    assert sound == [(position, position + 1) for position in range(len(s.samples[0].prompt) + DECODED - 1)]
    engine.model.model.register_forward_pre_hook(forgetful, with_kwargs=True)
    s.symptoms = s.bench.read("candidate")
    assert s.remaining.of("tokens", "logprobs") and not s.remaining.of("scores")
    _locate(s, found)
    assert not s.named and found.computes == {"candidate": "attention length"}
    assert "attention reads 6 keys at position 6, where there are 7" in found.layers["candidate"]
    assert "and so at 3 of 9 tokens" in found.layers["candidate"]


def test_a_buffer_of_an_unknown_kind_is_not_tested(lab: Lab) -> None:
    s = lab.situation(ASKED)
    engine = s.bench._stands["candidate"].session._target._bare  # type: ignore[attr-defined]
    engine.model.register_buffer("mine", torch.ones(3))
    assert s.bench.held("candidate").of_buffers("not tested") == ["mine"]
