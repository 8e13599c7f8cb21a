"""The order in which pages leave: what nothing can use first, then the least recently useful.

Three links between pages decide, and each costs the same however many pages
there are:

- a page leans on the page *before* it in its group: a prefix is shortened from
  its end, and holding its last page holds all of it;
- a *family* is the pages of all groups that one boundary needs, each group's
  last page standing for those before it: when one leaves, the boundary is gone;
- a page is *useful* as long as a family, or a useful page behind it, needs it.
"""

from lmc_grouped.core.room import Page

Family = tuple[Page, ...]
"""The last pages of all groups at one boundary; empty where one page serves it alone."""

ALONE: tuple[Family, ...] = ((),)
"""The families of a page that serves a boundary by itself."""


def hold(page: Page | None) -> None:
    """Keep ``page``, and all it leans on, from leaving."""
    while page is not None:
        page.holds += 1
        if page.holds > 1:
            return
        if page.after is not None:
            page.pool.room.order_of(page).remove(page)
        page = page.previous


def unhold(page: Page | None) -> None:
    """Undo one ``hold``: the end of a prefix is first in the order, its start last."""
    while page is not None:
        page.holds -= 1
        if page.holds:
            return
        room = page.pool.room
        if page.gone:
            room.vacate(page)
        else:
            room.order_of(page).append(page)
        page = page.previous


def gain(page: Page | None) -> None:
    """Something needs ``page``: it and all it leans on are useful."""
    while page is not None:
        page.uses += 1
        if page.uses > 1:
            return
        if page.after is not None:
            page.pool.room.useless.remove(page)
            page.pool.room.useful.append(page)
        page = page.previous


def lose(page: Page | None) -> None:
    """Undo one ``gain``."""
    while page is not None:
        page.uses -= 1
        if page.uses:
            return
        if page.after is not None:
            page.pool.room.useful.remove(page)
            page.pool.room.useless.append(page)
        page = page.previous


def lean(page: Page, previous: Page) -> None:
    """``page`` comes after ``previous`` in its group; saying it twice changes nothing."""
    if page.previous is not None:
        assert page.previous is previous
        return
    page.previous = previous
    previous.followers += 1
    if page.holds:
        hold(previous)
    if page.uses:
        gain(previous)


def form_family(ends: list[Page]) -> None:
    """The pages serve a boundary together, as its most recent use."""
    if not ends:
        return
    family = tuple(ends) if len(ends) > 1 else ()
    if family not in ends[0].families:
        for page in ends:
            if page.families:
                page.families = (*page.families, family)
                continue
            page.families = (family,) if family else ALONE
            gain(page)
    for page in ends:
        hold(page)
    for page in reversed(ends):
        unhold(page)


def leave(page: Page) -> None:
    """Cut ``page`` out of families and prefixes; without holders its slot is free.

    Raises nothing; what leaned on it has to leave as well.
    """
    _break_families(page)
    previous, page.previous = page.previous, None
    if previous is not None:
        previous.followers -= 1
        if page.uses:
            lose(previous)
        if page.holds:
            unhold(previous)
    page.gone = True
    if page.holds == 0:
        room = page.pool.room
        room.order_of(page).remove(page)
        room.vacate(page)


def _break_families(page: Page) -> None:
    """No boundary that needed ``page`` can be served any more."""
    families, page.families = page.families, ()
    for family in families:
        for member in family:
            if member is page:
                continue
            member.families = tuple(kept for kept in member.families if kept is not family)
            if not member.families:
                lose(member)
    if families:
        lose(page)


def make_ready(page: Page) -> bool:
    """Make a confirmed page readable, unless the page before it is not yet."""
    page.ready = page.gone or page.previous is None or page.previous.ready
    return page.ready


def with_followers(pages: list[Page]) -> list[Page]:
    """``pages`` and every page that leans on one of them, however far behind."""
    lost = dict.fromkeys(pages)
    safe: set[Page] = set()
    for pool in {page.pool for page in pages if page.followers}:
        for page in pool.pages.values():
            trail = []
            walk: Page | None = page
            while walk is not None and walk not in lost and walk not in safe:
                trail.append(walk)
                walk = walk.previous
            if walk in lost:
                lost.update(dict.fromkeys(trail))
            else:
                safe.update(trail)
    return list(lost)
