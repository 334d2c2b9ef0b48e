"""The classroom's pure parts: block programs, change scores, decoding, episodes, prompts, the trained model."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from apps.classroom.blocks import BadProgramError, read_program, tree_of
from apps.classroom.episodes import Episode, Episodes, segment
from apps.classroom.export import Pseudonyms, safe_cell
from apps.classroom.labels import label_in, labelled, precision, wilson
from apps.classroom.monitor import classroom
from apps.classroom.prompt import plain_type, playground_prompt
from apps.classroom.score import bucket_of, change_score
from apps.classroom.simulator import Block, Lesson, Production, to_xml
from apps.classroom.student import MODEL, STATES, GlassBox, Student, StudentState
from apps.classroom.train import bound_of, scores_of, train
from tests.support.watched import Pages
from tidemill.monitors import Event
from tidemill.monitors.decoders import Hmm, decode


def stack(*types: str, number: int = 200) -> str:
    return to_xml([Block(type, number) for type in types])


# -- programs -------------------------------------------------------------------------------------


def test_a_program_is_read_from_xml_without_its_namespaces_and_shadows() -> None:
    program = read_program(
        '<xml xmlns="x"><block type="when"><field name="B">2</field><field name="A">1</field>'
        '<value name="V"><shadow type="num"><field name="N">7</field></shadow></value>'
        '<statement name="DO"><block type="go"/></statement><next><block type="stop"/></next></block></xml>'
    )
    assert [block.label for block in program.walk()] == ["when A=1 B=2", "go", "stop"]
    tree = tree_of(program, "document")
    assert tree.size == 5  # three blocks, and an edge to each of two
    assert tree_of(program, "corrected").size == 3


def test_the_same_program_in_json_gives_the_same_tree() -> None:
    xml = (
        '<xml><block type="repeat"><value name="TIMES"><shadow type="num"><field name="N">7</field></shadow></value>'
        '<statement name="DO"><block type="go"/></statement><next><block type="stop"/></next></block></xml>'
    )
    data = {
        "blocks": {
            "blocks": [
                {
                    "type": "repeat",
                    "inputs": {
                        "DO": {"block": {"type": "go"}},
                        "TIMES": {"shadow": {"type": "num", "fields": {"N": 7}}},
                    },
                    "next": {"block": {"type": "stop"}},
                }
            ]
        }
    }
    for profile in ("document", "corrected"):
        one = tree_of(read_program(xml), profile)
        assert one.digest == tree_of(read_program(data), profile).digest
        assert one.digest == tree_of(read_program(json.dumps(data)), profile).digest


@pytest.mark.parametrize("text", ["", "   ", "<xml/>", '{"blocks": {}}'])
def test_nothing_is_an_empty_program(text: str) -> None:
    assert read_program(text).stacks == ()
    assert tree_of(read_program(text), "document").size == 0


@pytest.mark.parametrize("text", ["<xml", "[1]", "7", '<!DOCTYPE x [<!ENTITY a "b">]><xml/>', '{"blocks": 3}'])
def test_what_is_no_program_is_refused(text: str) -> None:
    with pytest.raises(BadProgramError):
        read_program(text)


def test_several_stacks_hang_under_one_root() -> None:
    program = read_program('<xml><block type="a"/><block type="b"/></xml>')
    assert tree_of(program, "document").size == 3


# -- scores ---------------------------------------------------------------------------------------


def test_the_score_is_the_documents_figure() -> None:
    one, two = stack("drive_for", "turn_for"), stack("drive_for", "turn_for", "wait")
    # Two nodes are inserted, a block and its edge; the larger tree has seven.
    assert change_score(one, two) == pytest.approx(2 / (7 + 10))
    assert change_score(one, one) == 0.0


def test_a_field_that_changes_within_its_type_counts_a_third() -> None:
    one = '<xml><block type="go"><field name="A">1</field></block></xml>'
    two = '<xml><block type="go"><field name="A">2</field></block></xml>'
    assert change_score(one, two) == pytest.approx(0.3 / 11)


def test_the_corrected_profile_sees_a_number_and_lets_a_rewrite_be_one() -> None:
    tuned = (stack("drive_for", number=200), stack("drive_for", number=600))
    assert change_score(*tuned, "document") == 0.0
    assert change_score(*tuned, "corrected") > 0.0
    rewritten = (stack(*["drive_for"] * 100), stack(*["turn_for"] * 100))
    assert 0.45 < change_score(*rewritten, "document") < 0.5
    assert change_score(*rewritten, "corrected") >= 0.5


@pytest.mark.parametrize(("score", "bucket"), [(0.0, 0), (0.01, 1), (0.221150, 1), (0.221151, 2), (1.0, 2)])
def test_scores_fall_into_the_documents_buckets(score: float, bucket: int) -> None:
    assert bucket_of(score) == bucket


# -- students -------------------------------------------------------------------------------------


def run_event(number: int, xml: str) -> Event:
    message = json.dumps({"project": json.dumps({"workspace": xml})})
    return Event(str(number), 1000.0 + number * 30, "s", {"eventType": "runProject", "raw_message": message})


def test_a_student_who_changes_nothing_gets_stuck_and_the_streak_begins_with_its_first_run() -> None:
    fold, state = Student(), StudentState()
    programs = [stack(*["go"] * n) for n in range(3, 8)] + [stack(*["go"] * 7)] * 8
    for number, xml in enumerate(programs):
        fold.on_event(state, run_event(number, xml))
    assert state.strategy_name == "stuck"
    buckets = [run.bucket for run in state.recent]
    path = decode(Hmm.read(MODEL), buckets)
    first = next(i for i in range(len(path)) if all(s == 2 for s in path[i:]))
    assert state.streak_start == state.recent[first].at
    assert state.streak_runs == len(path) - first
    assert msgspec.json.decode(msgspec.json.encode(state), type=StudentState) == state


def test_the_first_run_has_no_score_and_other_events_do_not_decode() -> None:
    fold, state = Student(), StudentState()
    fold.on_event(state, run_event(1, stack("go")))
    assert (state.runs, state.recent, state.strategy) == (1, [], None)
    fold.on_event(state, Event("2", 1100.0, "s", {"eventType": "blockMoved", "raw_message": "{}"}))
    assert (state.runs, state.path.steps) == (1, 0)


def test_a_run_that_cannot_be_read_is_counted_and_changes_nothing_else() -> None:
    fold, state = Student(), StudentState()
    fold.on_event(state, run_event(1, stack("go")))
    before = state.workspace
    fold.on_event(state, run_event(2, "<xml"))
    assert (state.unreadable, state.runs, state.workspace) == (1, 1, before)


def test_the_glass_box_says_stuck_after_runs_without_a_change() -> None:
    fold, state = GlassBox(zero_runs=3), StudentState()
    for number, xml in enumerate([stack("go"), stack("go", "go"), *[stack("go", "go", "go")] * 5]):
        fold.on_event(state, run_event(number, xml))
    assert state.strategy_name == "stuck"
    assert state.streak_start == 1000.0 + 3 * 30


def test_the_shipped_model_has_the_documents_states() -> None:
    assert Hmm.read(MODEL).names == STATES
    watch = classroom(Pages())
    assert [(t.name, t.kind) for t in watch.triggers] == [
        ("wheel-spin", "sustained"),
        ("inactive", "absent"),
        ("big-rewrite", "momentary"),
    ]
    assert watch.fold.window == 5000


def test_a_model_is_trained_from_logs_and_its_states_are_in_order() -> None:
    clock = [0.0]
    lesson = Lesson(25, start=0.0, seed=3, now=lambda: clock[0])
    clock[0] = 5400.0
    scores = scores_of(lesson.upto_now())
    model = train(scores, bound_of(scores), rounds=40)
    emissions = model.emissions
    assert emissions is not None
    assert emissions[2][0] == max(row[0] for row in emissions)
    assert emissions[1][2] >= emissions[0][2]
    assert model.names == STATES


# -- episodes -------------------------------------------------------------------------------------


def test_a_session_falls_into_episodes() -> None:
    events = [
        ("blockMoved", 0.0), ("menuOpen", 2.0), ("blockChanged", 4.0), ("runProject", 10.0), ("playgroundData", 12.0),
        ("projectEnd", 20.0), ("playgroundShow", 22.0), ("blockMoved", 30.0), ("loadProject", 40.0),
        ("menuClose", 41.0), ("projectEnd", 42.0), ("whatIsThis", 43.0), ("runProject", 50.0), ("blockMoved", 60.0),
        ("runProject", 500.0),
    ]  # fmt: skip
    assert [(e.kind, e.start, e.end) for e in segment(events)] == [
        ("code", 0.0, 4.0),
        ("run", 10.0, 20.0),
        ("pause", 20.0, 30.0),
        ("code", 30.0, 30.0),
        ("reset", 40.0, 40.0),
        ("run", 50.0, 60.0),
        ("code", 60.0, 60.0),
        ("inactive", 60.0, 500.0),
        ("run", 500.0, 500.0),
    ]


kinds = st.sampled_from(["blockMoved", "runProject", "projectEnd", "loadProject", "menuOpen", "playgroundData", "odd"])


@given(st.lists(st.tuples(kinds, st.integers(0, 2000)), max_size=60))
def test_episodes_never_overlap_and_none_crosses_a_long_silence(events: list[tuple[str, int]]) -> None:
    found = segment([(kind, float(at)) for kind, at in events])
    assert all(e.start <= e.end for e in found)
    work = [e for e in found if e.kind in ("code", "run", "reset")]
    assert all(a.end <= b.start for a, b in zip(work, work[1:], strict=False))  # noqa: RUF007
    for silence in (e for e in found if e.kind == "inactive"):
        assert all(e.end <= silence.start or e.start >= silence.end for e in work)


def test_a_session_goes_on_after_it_was_stored() -> None:
    first = Episodes()
    for kind, at in [("blockMoved", 1.0), ("blockMoved", 2.0)]:
        first.step(kind, at)
    again = msgspec.json.decode(msgspec.json.encode(first), type=Episodes)
    again.step("runProject", 3.0)
    assert again.done == [Episode("code", 1.0, 2.0)]


# -- words ----------------------------------------------------------------------------------------


def test_the_prompt_shows_what_runs_and_what_does_not_in_neutral_words() -> None:
    xml = stack("drive_for").replace("</xml>", '<block type="vexcode_v5_spin"/></xml>')
    told = playground_prompt(read_program(xml))
    assert told.splitlines() == [
        "[Active]",
        "  when_started",
        "  drive_for UNIT=mm AMOUNT=(200)",
        "[Orphaned]",
        "  spin",
    ]
    assert "stuck" not in told
    assert plain_type("iq_go_drive") == "drive"


def test_a_pseudonym_stays_and_tells_nothing_without_its_key() -> None:
    names = Pseudonyms("k", ["ann", "anna", "b"])
    assert names.of("ann") == Pseudonyms("k").of("ann") != Pseudonyms("other").of("ann")
    assert "ann" not in names.of("ann")
    assert names.of("ann") != names.of("ann", "s")
    told = names.within("ann sits by anna; banana and b stay")
    assert told == f"{names.of('ann')} sits by {names.of('anna')}; banana and b stay"


def test_no_cell_of_an_export_is_a_formula() -> None:
    assert [safe_cell(text) for text in ("=1+1", "@x", "-a", "plain", "+0000", "-5", "")] == [
        "'=1+1", "'@x", "'-a", "plain", "+0000", "-5", "",
    ]  # fmt: skip


def test_notes_are_labels_and_the_last_word_counts() -> None:
    assert [label_in(note) for note in (None, "", "fine", "#right", "so #Wrong", "#wrong, no: #right")] == [
        None, None, None, True, False, True,
    ]  # fmt: skip
    assert labelled("was away #right", False) == "was away #wrong"
    assert labelled(None, True) == "#right"
    assert labelled("#wrong", None) == ""
    assert label_in("#rightly so") is None


def test_precision_has_bounds_that_narrow_with_what_is_known() -> None:
    notes = ["#right"] * 6 + ["#wrong"] * 2 + [None]
    (told,) = precision({"trigger": "wheel-spin", "note": note} for note in notes)
    assert (told.alerts, told.right, told.wrong, told.share) == (9, 6, 2, 0.75)
    assert (told.low, told.high) == (pytest.approx(0.4093, abs=1e-3), pytest.approx(0.9285, abs=1e-3))
    assert wilson(0, 0) == (None, None, None)
    _, low, high = wilson(600, 800)
    assert low is not None
    assert high is not None
    assert high - low < 0.07


def test_the_simulated_lesson_is_the_same_each_time_it_is_given() -> None:
    def given_at(moment: float) -> list[dict[str, Any]]:
        return Lesson(5, start=0.0, seed=9, now=lambda: moment).upto_now()

    assert given_at(600.0) == given_at(600.0)
    assert len(given_at(600.0)) > 50
    status, body = Production(Lesson(1, start=0.0, now=lambda: 1.0)).answer("GET", "/api/rabbitmq/vex_logs/", {}, b"")
    assert (status, json.loads(body)["detail"]) == (401, "invalid token")
