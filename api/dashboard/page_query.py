"""What pages are asked for, and so what their addresses say."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic_core import to_jsonable_python

from ..http.schemas.base import Answer


class PageQuery(Answer):
    """What a page was asked for, as its address has it."""

    in_path: ClassVar[frozenset[str]] = frozenset()
    """Fields that are no part of the query."""

    places: ClassVar[frozenset[str]] = frozenset({"cursor"})
    """Fields that say where in a list the page is: they are left out unless told."""

    def query(self, **changes: Any) -> dict[str, Any]:
        """The query of the page that is asked for the same but for some changes, without what is so by default."""
        fields = self.model_dump(mode="json", exclude={*self.in_path, *self.places}) | changes
        return {name: value for name, value in fields.items() if value != self.plain(name)}

    @classmethod
    def plain(cls, name: str) -> Any:
        """What a field is by default; None for one that has to be told, and for an unknown one."""
        field = cls.model_fields.get(name)
        return None if field is None or field.is_required() else to_jsonable_python(field.get_default())
