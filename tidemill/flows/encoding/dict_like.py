"""A pydantic model with additional dynamic values that can be used like a dict.

Declared fields are validated when the model is created. Every other keyword becomes a dynamic value, which can be read
and written as an attribute and as an item. `keys`, `items`, `get`, `in` and `len` see only the dynamic values.

Dynamic values are stored as pydantic's extra values, so equality, copies and JSON include them without code of ours. A
class that declares no fields is created without calling the validator.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict
from pydantic_core import to_json

_extra_slot = vars(BaseModel)["__pydantic_extra__"]
_fields_set_slot = vars(BaseModel)["__pydantic_fields_set__"]
_private_slot = vars(BaseModel)["__pydantic_private__"]
_get_extra = _extra_slot.__get__
_set_extra = _extra_slot.__set__
_set_fields_set = _fields_set_slot.__set__
_set_private = _private_slot.__set__


class DictLikeModel(BaseModel):
    """A pydantic model whose undeclared values are dynamic and dict-like."""

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="allow")

    _declares_nothing: ClassVar[bool] = True
    _wire_prefix: ClassVar[bytes] = b""
    _wire_kinds: ClassVar[tuple[type, ...] | None] = None

    def __init__(self, /, **params: Any) -> None:
        if "_data" in params:
            params.update(params.pop("_data"))
        if self._declares_nothing:
            _set_extra(self, params)
            _set_fields_set(self, set())
            _set_private(self, None)
            return
        declared = self.__private_attributes__
        private = {name: params.pop(name) for name in declared if name in params} if declared else None
        self.__pydantic_validator__.validate_python(params, self_instance=self)
        if private:
            for name, value in private.items():
                setattr(self, name, value)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        decorators = cls.__pydantic_decorators__
        cls._declares_nothing = not (
            cls.__pydantic_fields__
            or cls.__private_attributes__
            or cls.__pydantic_post_init__
            or decorators.model_validators
            or decorators.field_validators
            or decorators.validators
            or decorators.root_validators
            or cls.model_config.get("extra") != "allow"
        )

    @property
    def _data(self) -> dict[str, Any]:
        """The dynamic values."""
        extra = _get_extra(self)
        if extra is None:
            extra = {}
            _set_extra(self, extra)
        return extra

    def __getattr__(self, name: str) -> Any:
        # Called only if there is no such field or method; pydantic's own lookup of extra values is ten times slower.
        try:
            return _get_extra(self)[name]
        except (KeyError, TypeError, AttributeError):
            return super().__getattr__(name)  # pyright: ignore[reportAttributeAccessIssue]

    def __setattr__(self, name: str, value: Any) -> None:
        cls = type(self)
        if name in cls.__pydantic_fields__ or name in cls.__private_attributes__ or hasattr(cls, name):
            super().__setattr__(name, value)
        else:
            self._data[name] = value

    def __getitem__(self, key: str) -> Any:
        return self._data[key]

    def __setitem__(self, key: str, value: Any) -> None:
        if key in type(self).__pydantic_fields__:
            setattr(self, key, value)
        else:
            self._data[key] = value

    def __contains__(self, key: object) -> bool:
        return key in self._data

    def __len__(self) -> int:
        return len(self._data)

    def __iter__(self) -> Iterator[str]:  # type: ignore[override]
        return iter(self._data)

    def __bool__(self) -> bool:
        return True

    def get(self, key: str, default: Any = None) -> Any:
        return self._data.get(key, default)

    def keys(self) -> KeysView[str]:
        return self._data.keys()

    def values(self) -> ValuesView[Any]:
        return self._data.values()

    def items(self) -> ItemsView[str, Any]:
        return self._data.items()

    def to_dict(self) -> dict[str, Any]:
        """Return the dynamic values as a new dict."""
        return dict(self._data)

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """Return the declared fields, with the dynamic values, if any, under `_data`."""
        dumped = super().model_dump(**options)
        dynamic = {name: dumped.pop(name) for name in self._data if name in dumped}
        if dynamic:
            dumped["_data"] = dynamic
        return dumped

    def model_dump_json(self, **options: Any) -> str:
        """Return the same as `model_dump`, as JSON text."""
        if not self._data and not self._hidden():
            return super().model_dump_json(**options)
        indent = options.pop("indent", None)
        return to_json(self.model_dump(mode="json", **options), indent=indent).decode()

    def _hidden(self) -> dict[str, Any]:
        """Values that are neither declared nor dynamic, but are stored."""
        return {}

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        declared = type(self).__pydantic_fields__
        return ((name, value) for name, value in self.__dict__.items() if name in declared)


class DictState(DictLikeModel):
    """The state of a run without a declared state type."""
