"""What the teacher's page decides and says: whom to go to first, who belongs together, and in which words. Pure."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from apps.classroom.blocks import read_program
from apps.classroom.claims import claim_in, is_present
from apps.classroom.ranking import CLAIM_LASTS, NEWS_LASTS, Claim, Need, group_stuck, rank_visits
from apps.classroom.simulator import Block, to_xml
from apps.classroom.span import CHANGES, SILENCES, Lived, at_least, live, sweep
from apps.classroom.student import STUCK, Facts, Run, Student, StudentState, facts_of
from apps.classroom.words import block_diff, block_name, listed, program_lines, tried, why
from tidemill.monitors import Event

NOW = 10_000.0


def stuck_on(block: str | None, **more: Any) -> Facts:
    wanted = {"streak_runs": 6, "streak_same": 5, "scored": 12, "same": 7, "runs": 13, "touched": ("vex_wait",), **more}
    return Facts(strategy=STUCK, focus=block, **wanted)


def spinning(id: int, since: float = NOW - 300) -> Need:
    return Need(id, "wheel-spin", since)


# -- the order ------------------------------------------------------------------------------------


def test_the_gravest_and_longest_come_first_and_who_is_being_visited_comes_last() -> None:
    needs = {
        "rewriter": [Need(1, "big-rewrite", NOW - 30, "r1", lasting=False)],
        "quiet": [Need(2, "inactive", NOW - 400)],
        "stuck": [spinning(3, NOW - 60)],
        "stuck longer": [spinning(4, NOW - 2000)],
        "stuck and quiet": [spinning(5), Need(6, "inactive", NOW - 320)],
        "visited": [spinning(7, NOW - 3600), Need(8, "inactive", NOW - 400)],
    }
    claims = {"visited": Claim("Ms Lee", NOW - 20)}
    order = rank_visits(needs, {}, claims, NOW)
    assert [visit.student for visit in order] == [
        "stuck and quiet",
        "stuck longer",
        "stuck",
        "quiet",
        "rewriter",
        "visited",
    ]
    assert order[0].alerts == (5, 6)
    assert order[0].trigger == "wheel-spin"
    assert order[-1].claim == Claim("Ms Lee", NOW - 20)


def test_a_claim_lapses_and_a_rewrite_is_news_only_for_a_while() -> None:
    claims = {"a": Claim("Ms Lee", NOW - CLAIM_LASTS)}
    assert rank_visits({"a": [spinning(1)]}, {}, claims, NOW)[0].claim is None
    old = {"a": [Need(1, "big-rewrite", NOW - NEWS_LASTS, "r", lasting=False)]}
    assert rank_visits(old, {}, {}, NOW) == []


def test_nobody_is_sent_to_who_is_not_in_the_room() -> None:
    assert rank_visits({"a": [spinning(1)], "b": [spinning(2)]}, {}, {}, NOW, away=["a"])[0].student == "b"


def test_who_can_be_helped_together_comes_before_who_is_alone() -> None:
    facts = {name: stuck_on("vex_turn_for") for name in ("b", "c")} | {"a": stuck_on("vex_wait")}
    order = rank_visits({name: [spinning(1)] for name in ("a", "b", "c")}, facts, {}, NOW)
    assert [(visit.student, visit.mates) for visit in order] == [("b", ("c",)), ("c", ("b",)), ("a", ())]


def test_classmates_stuck_on_the_same_block_are_a_group_and_nobody_is_one_alone() -> None:
    facts = {
        "a": stuck_on("vex_turn_for"),
        "b": stuck_on("vex_turn_for"),
        "c": stuck_on("vex_wait"),
        "d": Facts(strategy=0, focus="vex_turn_for"),
        "e": stuck_on(None),
    }
    (group,) = group_stuck(facts)
    assert group.students == ("a", "b")
    assert group.text == "a and b are stuck on “turn for”: one visit may help them all."


kinds = st.sampled_from(["wheel-spin", "inactive", "big-rewrite", "another"])
needs = st.builds(Need, st.integers(1, 99), kinds, st.floats(0, NOW), st.none(), lasting=st.booleans())


@given(st.dictionaries(st.text("abc", min_size=1, max_size=2), st.lists(needs, min_size=1, max_size=4), max_size=6))
def test_everybody_with_a_lasting_need_is_listed_once_in_the_order_of_ranks(
    found: dict[str, list[Need]],
) -> None:
    order = rank_visits(found, {}, {}, NOW)
    names = [visit.student for visit in order]
    assert len(names) == len(set(names))
    assert set(names) >= {name for name, each in found.items() if any(need.lasting for need in each)}
    assert [visit.rank for visit in order] == sorted((visit.rank for visit in order), reverse=True)
    assert all(visit.why.endswith(".") and visit.alerts for visit in order)


def test_labels_say_who_is_going_and_who_is_here_and_nonsense_says_nothing() -> None:
    going = {"claimed": {"who": "Ms Lee", "at": NOW}}
    assert claim_in(going, NOW + 1) == Claim("Ms Lee", NOW)
    assert claim_in(going, NOW + CLAIM_LASTS) is None
    assert [claim_in(labels, NOW) for labels in ({}, {"claimed": None}, {"claimed": "x"}, {"claimed": {"who": 1}})] == [
        None,
    ] * 4
    assert [is_present(labels) for labels in ({}, {"present": True}, {"present": False})] == [True, True, False]


# -- the words ------------------------------------------------------------------------------------


def test_why_is_a_sentence_about_what_is_wrong() -> None:
    assert why(["wheel-spin"], stuck_on("vex_drive_for")) == "Stuck on “drive for”: 6 runs, 5 of them without a change."
    assert why(["wheel-spin"], stuck_on(None, streak_runs=3, streak_same=0)) == (
        "Stuck: 3 runs, none of them without a change."
    )
    assert why(["wheel-spin"], stuck_on(None, streak_runs=4, streak_same=4)) == (
        "Stuck: 4 runs in a row without a change."
    )
    assert why(["inactive"], Facts(episode="run")) == "Gone quiet after running the program."
    assert why(["inactive"], Facts()) == "Gone quiet."
    assert why(["big-rewrite"], Facts(), 0.721) == "Replaced most of the program between two runs (72 %)."
    assert why(["wheel-spin", "inactive"], stuck_on("wait", episode="code")) == (
        "Stuck on “wait”: 6 runs, 5 of them without a change; also gone quiet in the middle of changing the program."
    )
    assert why(["of-your-own"], Facts()) == "Of your own."


def test_what_was_tried_names_the_blocks_and_counts_the_runs() -> None:
    assert tried(Facts()) == "Nothing has been run yet."
    assert tried(Facts(runs=1)) == "One run so far."
    assert tried(stuck_on("x", touched=("vex_wait", "vex_drive_for"))) == (
        "Changed “drive for” and “wait”; of the last 12 runs 7 were without a change."
    )
    assert tried(Facts(runs=3, scored=2, same=1)) == "Of the last 2 runs 1 was without a change."
    assert [listed(["a"]), listed(["a", "b", "c"]), listed([])] == ["a", "a, b and c", ""]
    assert [block_name("vexcode_v5_spin_for"), block_name("vex_")] == ["spin for", "vex"]


def test_the_visit_of_a_rewrite_says_how_much_was_replaced() -> None:
    facts = Facts(recent=(Run("r1", NOW - 40, 0.8, 2, 1), Run("r2", NOW - 20, 0.1, 1, 1)))
    order = rank_visits({"a": [Need(1, "big-rewrite", NOW - 40, "r1", lasting=False)]}, {"a": facts}, {}, NOW)
    assert "(80 %)" in order[0].why


def program(*blocks: Block) -> Any:
    return read_program(to_xml(blocks))


def test_a_program_reads_like_one() -> None:
    told = program_lines(program(Block("drive_for", 200), Block("repeat", 3, [Block("wait", 5)]), Block("print", 1)))
    assert [(depth, text) for depth, text, _ in told] == [
        (0, "when started"),
        (0, "drive for 200 mm"),
        (0, "repeat 3"),
        (1, "wait 5 mm"),
        (0, "print 1 mm"),
    ]
    assert all(runs for _, _, runs in told)
    loose = read_program('<xml><block type="vex_wait"><value name="T"><block type="vex_sum"/></value></block></xml>')
    assert program_lines(loose) == [(0, "wait (sum)", False)]


def test_a_block_diff_tells_what_came_what_went_and_what_was_only_set_again() -> None:
    before = program(Block("drive_for", 200), Block("turn_for", 90), Block("wait", 1))
    after = program(Block("drive_for", 600), Block("wait", 1), Block("print", 2))
    signs = [(line["sign"], line["text"], line.get("was")) for line in block_diff(before, after)]
    assert signs == [
        (" ", "when started", None),
        ("~", "drive for 600 mm", "drive for 200 mm"),
        ("-", "turn for 90 mm", None),
        (" ", "wait 1 mm", None),
        ("+", "print 2 mm", None),
    ]


blocks = st.lists(st.builds(Block, st.sampled_from(["go", "wait", "turn"]), st.integers(1, 3)), max_size=8)


@given(blocks, blocks)
def test_a_block_diff_read_one_way_is_the_old_program_and_the_other_way_the_new_one(a: Any, b: Any) -> None:
    before, after = program(*a), program(*b)
    told = block_diff(before, after)
    assert [line["text"] for line in told if line["sign"] != "-"] == [text for _, text, _ in program_lines(after)]
    old = [line.get("was", line["text"]) for line in told if line["sign"] != "+"]
    assert old == [text for _, text, _ in program_lines(before)]


# -- what is known of a student -------------------------------------------------------------------


def events_of(*programs: str, gap: float = 30.0) -> list[Event]:
    made = []
    for number, xml in enumerate(programs):
        message = msgspec.json.encode({"project": {"workspace": xml}}).decode()
        made.append(Event(str(number), number * gap, "s", {"eventType": "runProject", "raw_message": message}))
    return made


def test_the_blocks_that_were_changed_lately_are_remembered_each_once() -> None:
    fold, state = Student(), StudentState()
    for number, block in enumerate(["a", "b", "a", "c", "d", "e"]):
        data = msgspec.json.encode({"blockEventData": f'{{"type": "{block}"}}'}).decode()
        fold.on_event(state, Event(str(number), float(number), "s", {"eventType": "blockMoved", "raw_message": data}))
    assert (state.focus, state.touched) == ("e", ["a", "c", "d", "e"])
    assert facts_of(state).touched == ("a", "c", "d", "e")


def test_a_span_is_lived_through_once_and_answers_for_every_threshold() -> None:
    one, other = to_xml([Block("go", 1)] * 5), to_xml([Block("turn", 1)] * 5)
    lived = live(events_of(one, one, one, other, other, one, gap=90.0), 1000.0, "document")
    assert lived.zeros == [2, 1]
    assert lived.silences == [90.0] * 5 + [550.0]
    told = sweep([lived])
    assert dict(told.zero_runs)[2] == 1
    assert dict(told.inactive)[60.0] == 6
    assert dict(told.inactive)[300.0] == 1
    change = lived.runs[2].change
    assert dict(told.big_rewrite) == {bound: 2 * (change >= bound) for bound in CHANGES}


@given(st.lists(st.floats(0, 1), max_size=30))
def test_a_higher_threshold_never_fires_more_often(values: list[float]) -> None:
    counts = [count for _, count in at_least(values, CHANGES)]
    assert counts == sorted(counts, reverse=True)
    assert counts == [sum(value >= bound for value in values) for bound in CHANGES]


def test_nobody_at_all_is_no_trouble() -> None:
    told = sweep([])
    assert told.runs == 0
    assert all(count == 0 for _, count in [*told.big_rewrite, *told.zero_runs, *told.inactive])
    assert sweep([Lived("s", [], [], [], [SILENCES[0]], 0.0, 1.0, 1)]).inactive[0] == (60.0, 1)


@pytest.mark.parametrize("text", ["", "x" * 300])
def test_any_type_of_block_has_a_name(text: str) -> None:
    assert block_name(text) == text
