"""What is loaded and unloaded when: the decisions of the model cache, without threads or time."""

from __future__ import annotations

from collections import Counter, defaultdict

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.examples import examples
from tidemill.engine.models.eviction import Command, Eviction, Footprint, Grant, Load, ModelRequest, RefuseModel, Unload

SIZES = {"a": 4, "b": 4, "c": 3, "d": 7, "pin": 2}
BUDGET = 10


def eviction(budget: int | None = BUDGET, **sizes: int) -> Eviction:
    return Eviction({name: Footprint(size) for name, size in (sizes or SIZES).items()}, budget)


def asked(on: Eviction, model: str, user: object, now: float = 0.0) -> list[Command]:
    return on.ask(ModelRequest(model, user), now)


def load(on: Eviction, model: str, user: object, now: float = 0.0) -> list[Command]:
    asked(on, model, user, now)
    return on.loaded(model, now)


def models(commands: list[Command], kind: type[Load] | type[Unload]) -> list[str]:
    return [command.model for command in commands if isinstance(command, kind)]


def given_to(commands: list[Command]) -> list[object]:
    return [command.ask.user for command in commands if isinstance(command, Grant)]


def test_ten_who_ask_load_once_and_all_get_it() -> None:
    it = eviction()
    commands = [command for user in range(10) for command in asked(it, "a", user)]
    assert models(commands, Load) == ["a"]
    assert given_to(it.loaded("a", 1.0)) == list(range(10))


def test_what_was_used_longest_ago_goes_first() -> None:
    it = eviction(a=4, b=4, c=4)
    for now, (model, user) in enumerate([("a", 1), ("b", 2)]):
        load(it, model, user, now)
    it.leave(2, 5.0)
    it.leave(1, 6.0)
    assert models(asked(it, "c", 3, 7.0), Unload) == ["b"]


def test_using_a_model_again_makes_it_the_youngest() -> None:
    it = eviction(a=4, b=4, c=4)
    load(it, "a", 1, 0.0)
    load(it, "b", 2, 1.0)
    it.leave(1, 2.0)
    it.leave(2, 3.0)
    asked(it, "a", 4, 4.0)
    it.leave(4, 5.0)
    assert models(asked(it, "c", 3, 6.0), Unload) == ["b"]


def test_a_model_in_use_stays_and_goes_when_its_user_has_left() -> None:
    it = eviction(a=6, b=6)
    load(it, "a", 1)
    assert asked(it, "b", 2) == []
    assert models(it.leave(1, 1.0), Unload) == ["a"]
    assert models(it.unloaded("a", 2.0), Load) == ["b"]


def test_nothing_is_sent_out_as_long_as_that_would_not_make_enough_room() -> None:
    it = eviction(a=4, b=4, c=7)
    load(it, "a", 1)
    load(it, "b", 2)
    it.leave(2, 1.0)
    assert asked(it, "c", 3, 2.0) == []
    assert it.standings["b"].phase == "loaded"


def test_newcomers_do_not_keep_a_busy_model_for_ever() -> None:
    it = eviction(a=6, b=6)
    load(it, "a", 1)
    asked(it, "b", 2)
    assert asked(it, "a", 3) == []
    assert models(it.leave(1, 1.0), Unload) == ["a"]
    assert models(it.unloaded("a", 2.0), Load) == ["b"]
    assert given_to(it.loaded("b", 3.0)) == [2]
    assert models(it.leave(2, 4.0), Unload) == ["b"]
    assert models(it.unloaded("b", 5.0), Load) == ["a"]
    assert given_to(it.loaded("a", 6.0)) == [3]


def test_a_failed_load_fails_all_that_wait_for_it_and_the_next_tries_again() -> None:
    it = eviction()
    for user in (1, 2):
        asked(it, "a", user)
    told, commands = it.failed("a", 1.0)
    assert ([ask.user for ask in told], commands) == ([1, 2], [])
    assert models(asked(it, "a", 3), Load) == ["a"]


def test_a_pinned_model_is_never_sent_out() -> None:
    it = Eviction({"pin": Footprint(4, pinned=True, idle=1.0), "a": Footprint(6), "b": Footprint(6)}, BUDGET)
    load(it, "pin", 0)
    load(it, "a", 1)
    it.leave(0, 1.0)
    it.leave(1, 2.0)
    assert it.rest(1000.0) == []
    assert models(asked(it, "b", 2, 1000.0), Unload) == ["a"]


def test_an_idle_model_goes_after_its_time_and_not_while_it_is_used() -> None:
    it = Eviction({"a": Footprint(4, idle=10.0)}, BUDGET)
    load(it, "a", 1, 0.0)
    assert it.rest(100.0) == []
    it.leave(1, 100.0)
    assert it.rest(109.0) == []
    assert it.rest(110.0) == [Unload("a", "idle")]


def test_a_user_who_wants_more_than_fits_beside_what_it_has_is_refused() -> None:
    it = eviction(a=6, b=6)
    load(it, "a", 1)
    [refused] = asked(it, "b", 1)
    assert isinstance(refused, RefuseModel)
    assert "beside a" in refused.why


def test_users_who_wait_for_each_other_are_told_so() -> None:
    it = eviction(a=4, b=4, c=4)
    load(it, "a", 1)
    load(it, "b", 2)
    assert asked(it, "c", 1) == []
    [refused] = asked(it, "c", 2)
    assert isinstance(refused, RefuseModel)
    assert refused.ask.user == 2
    assert models(it.leave(2, 1.0), Unload) == ["b"]
    assert models(it.unloaded("b", 2.0), Load) == ["c"]


def test_a_closed_shelf_lets_everything_go_that_is_not_used() -> None:
    it = Eviction({"pin": Footprint(2, pinned=True), "a": Footprint(4), "b": Footprint(4)}, BUDGET)
    for user, model in enumerate(it.footprints):
        load(it, model, user)
    it.leave(0, 1.0)
    it.leave(1, 1.0)
    assert it.close(2.0) == [Unload("pin", "closed"), Unload("a", "closed")]
    assert it.leave(2, 3.0) == [Unload("b", "closed")]
    [refused] = asked(it, "a", 4)
    assert isinstance(refused, RefuseModel)


class AnyHistory(RuleBasedStateMachine):
    """Whatever happens in whatever order, by the world's own account and not by the shelf's."""

    @initialize(pinned=st.booleans(), budget=st.sampled_from([BUDGET, 13, None]))
    def begin(self, pinned: bool, budget: int | None) -> None:
        self.budget = budget
        self.eviction = Eviction(
            {name: Footprint(size, pinned and name == "pin", 5.0) for name, size in SIZES.items()}, budget
        )
        self.now = 0.0
        self.users = 0
        self.phase: dict[str, str] = {}
        self.has: defaultdict[int, set[str]] = defaultdict(set)
        self.waits: set[ModelRequest] = set()
        self.last_used: Counter[str] = Counter()

    def obey(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Load):
                assert command.model not in self.phase, "loaded twice"
                self.phase[command.model] = "loading"
            elif isinstance(command, Unload):
                self.check_unload(command, commands)
                self.phase[command.model] = "unloading"
            elif isinstance(command, Grant):
                assert self.phase[command.ask.model] == "loaded", "given before it was there or after it went"
                self.waits.remove(command.ask)
                self.has[command.ask.user].add(command.ask.model)  # pyright: ignore[reportArgumentType]
                self.last_used[command.ask.model] = int(self.now)
            else:
                self.waits.remove(command.ask)

    def check_unload(self, command: Unload, commands: list[Command]) -> None:
        used = {model for models in self.has.values() for model in models}
        assert self.phase[command.model] == "loaded"
        assert command.model not in used, "unloaded while in use"
        assert not self.eviction.footprints[command.model].pinned
        if command.why == "evicted":
            going = {other.model for other in commands if isinstance(other, Unload)}
            idle = [name for name, phase in self.phase.items() if phase == "loaded" and name not in used | going]
            older = [name for name in idle if self.last_used[name] < self.last_used[command.model]]
            assert all(self.eviction.footprints[name].pinned for name in older), "a younger one went first"

    @rule(model=st.sampled_from(sorted(SIZES)), again=st.booleans(), pick=st.randoms(use_true_random=False))
    def ask_for_model(self, model: str, again: bool, pick) -> None:  # type: ignore[no-untyped-def]
        self.now += 1
        holders = sorted(user for user, models in self.has.items() if models and model not in models)
        holders = [user for user in holders if all(ask.user != user for ask in self.waits)]
        if again and holders:
            user = pick.choice(holders)
        else:
            self.users += 1
            user = self.users
        ask = ModelRequest(model, user)
        self.waits.add(ask)
        self.obey(self.eviction.ask(ask, self.now))

    def moving(self, phase: str) -> list[str]:
        return sorted(name for name, each in self.phase.items() if each == phase)

    @precondition(lambda self: self.moving("loading"))
    @rule(well=st.sampled_from([True, True, False]), pick=st.randoms(use_true_random=False))
    def a_load_ends(self, well: bool, pick) -> None:  # type: ignore[no-untyped-def]
        self.now += 1
        model = pick.choice(self.moving("loading"))
        if well:
            self.phase[model] = "loaded"
            self.last_used[model] = int(self.now)
            self.obey(self.eviction.loaded(model, self.now))
        else:
            del self.phase[model]
            told, commands = self.eviction.failed(model, self.now)
            self.waits -= set(told)
            self.obey(commands)

    @precondition(lambda self: self.moving("unloading"))
    @rule(pick=st.randoms(use_true_random=False))
    def an_unload_ends(self, pick) -> None:  # type: ignore[no-untyped-def]
        self.now += 1
        model = pick.choice(self.moving("unloading"))
        del self.phase[model]
        self.obey(self.eviction.unloaded(model, self.now))

    @precondition(lambda self: self.users)
    @rule(pick=st.randoms(use_true_random=False))
    def a_user_leaves(self, pick) -> None:  # type: ignore[no-untyped-def]
        self.leave(pick.randint(1, self.users))

    def leave(self, user: int) -> None:
        self.now += 1
        for model in self.has.pop(user, set()):
            self.last_used[model] = int(self.now)
        self.waits = {ask for ask in self.waits if ask.user != user}
        self.obey(self.eviction.leave(user, self.now))

    @rule(passed=st.integers(1, 8))
    def time_passes(self, passed: int) -> None:
        self.now += passed
        self.obey(self.eviction.rest(self.now))

    @invariant()
    def memory_is_never_above_the_budget(self) -> None:
        if self.budget is not None:
            assert sum(SIZES[name] for name in self.phase) <= self.budget

    @invariant()
    def nobody_who_has_a_model_waits_with_all_others_for_ever(self) -> None:
        holders = {user for user, models in self.has.items() if models}
        still = all(phase == "loaded" for phase in self.phase.values())
        assert not (holders and still and holders <= {ask.user for ask in self.waits})

    def teardown(self) -> None:
        """When loads end and users leave, every waiting job is served in the end."""
        for _ in range(200):
            if not self.waits:
                return
            if loading := self.moving("loading"):
                self.phase[loading[0]] = "loaded"
                self.obey(self.eviction.loaded(loading[0], self.now))
            elif unloading := self.moving("unloading"):
                del self.phase[unloading[0]]
                self.obey(self.eviction.unloaded(unloading[0], self.now))
            else:
                self.leave(next(user for user, models in self.has.items() if models))
        raise AssertionError(f"{len(self.waits)} wait for ever")


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = examples(150, stateful_step_count=40)
