"""What every patch can do, on a made-up release."""

import dataclasses
import logging
import sys
from types import ModuleType

import pytest

from patches.base import Patch, Site, State

DEFINES, IMPORTS, LATER = "lmcache.made_up.defines", "lmcache.made_up.imports", "elsewhere.imports"


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module with a wrong function, a module that imported its name, and a class."""
    defining, importing, outside = ModuleType(DEFINES), ModuleType(IMPORTS), ModuleType(LATER)

    def double(number: int) -> int:
        """Twice the number, it says."""
        return number * 3

    class Tool:
        def method(self) -> str:
            return "wrong"

        @staticmethod
        def static() -> str:
            return "wrong"

    defining.double = double
    defining.Tool = Tool
    importing.double = importing.renamed = double
    outside.double = double
    for module in (defining, importing, outside):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return defining


def patch(*sites: Site, has_defect=lambda: True) -> Patch:
    return Patch(
        name="P9",
        summary="twice is twice",
        upstream="https://example.org/9",
        retire_when="numbers change",
        has_defect=has_defect,
        sites=sites,
    )


def double_site(modules: tuple[str, ...] = (DEFINES,)) -> Site:
    return Site(modules, "double", lambda original: lambda number: original(number) * 2 // 3)


def method_sites() -> list[Site]:
    right = lambda original: lambda *args: original(*args).replace("wrong", "right")  # noqa: E731
    return [Site((DEFINES,), "Tool.method", right), Site((DEFINES,), "Tool.static", right)]


def test_a_patch_replaces_the_function_wherever_lmcache_bound_its_name(release: ModuleType):
    one = patch(double_site())
    assert one.apply() is State.APPLIED
    importing = sys.modules[IMPORTS]
    assert release.double(4) == importing.double(4) == importing.renamed(4) == 8
    assert sys.modules[LATER].double(4) == 12  # not LMCache's: somebody else's business
    assert release.double.__doc__ == "Twice the number, it says."


def test_applying_twice_changes_nothing(release: ModuleType):
    one = patch(double_site())
    one.apply()
    first = release.double
    assert one.apply() is State.APPLIED
    assert release.double is first


def test_reverting_restores_every_name(release: ModuleType):
    original = release.double
    one = patch(double_site(), *method_sites())
    one.apply()
    importing = sys.modules[IMPORTS]
    importing.late = release.double  # bound while the patch was in place
    assert one.revert()
    assert {release.double, importing.double, importing.renamed, importing.late} == {original}
    assert (release.Tool().method(), release.Tool.static()) == ("wrong", "wrong")
    assert not one.revert()


def test_methods_and_static_methods_can_be_replaced(release: ModuleType):
    assert patch(*method_sites()).apply() is State.APPLIED
    assert (release.Tool().method(), release.Tool.static()) == ("right", "right")
    assert release.Tool().static() == "right"


def test_a_patch_under_another_one_is_found_and_can_be_taken_out(release: ModuleType):
    below = patch(double_site())
    more = Site((DEFINES,), "double", lambda original: lambda number: original(number) + 1)
    above = dataclasses.replace(patch(more), name="P10")
    assert [below.apply(), above.apply(), below.apply()] == [State.APPLIED] * 3
    assert release.double(4) == 9
    assert below.revert()
    assert release.double(4) == sys.modules[IMPORTS].double(4) == 13
    assert not below.revert()
    assert above.revert()
    assert release.double(4) == 12


def test_a_release_without_the_defect_is_left_alone(release: ModuleType):
    original = release.double
    assert patch(double_site(), has_defect=lambda: False).apply() is State.NOT_NEEDED
    assert release.double is original


@pytest.mark.parametrize("missing", ["lmcache.made_up.nowhere", "no_such_package.module"])
def test_a_release_without_the_function_is_left_alone(release: ModuleType, missing: str):
    original = release.double
    assert patch(double_site(), double_site((missing,))).apply() is State.NOT_HERE
    assert release.double is original


def test_the_first_module_that_has_it_counts(release: ModuleType):
    assert patch(double_site(("lmcache.made_up.nowhere", DEFINES))).apply() is State.APPLIED
    assert release.double(4) == 8


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (OSError, State.UNCLEAR),
        (AttributeError, State.UNCLEAR),
        (ModuleNotFoundError, State.NOT_HERE),
    ],
)
def test_a_question_that_fails_changes_nothing(
    release: ModuleType, error: type[Exception], state: State
):
    def strange() -> bool:
        raise error("what now")

    original = release.double
    assert patch(double_site(), has_defect=strange).apply() is state
    assert release.double is original


def test_what_a_release_logs_when_it_is_asked_is_not_heard(release: ModuleType, lines: list[str]):
    def talkative() -> bool:
        logging.getLogger("lmc_grouped.patches").critical("look at me")
        return True

    patch(double_site(), has_defect=talkative).apply()
    assert len(lines) == 1
    assert "applied" in lines[0]


@pytest.mark.parametrize(("defect", "word"), [(True, "applied"), (False, "not needed")])
def test_a_patch_says_in_one_line_what_became_of_it(
    release: ModuleType, lines: list[str], defect: bool, word: str
):
    patch(double_site(), has_defect=lambda: defect).apply()
    (line,) = lines
    for part in ("P9", word, "https://example.org/9", "numbers change"):
        assert part in line
