"""What is wrong with a value that should be JSON of a schema: the reasons of the pipeline clean.

Law: a value without a fault is exactly one JSON object, has every field that is NOT NULL, and each
field in its type, at every depth. Spark's `from_json` makes null of what does not fit, and says
nothing; so what it made is held against the value as it came, which is parsed apart from it.
"""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType, VariantType

NO_VALUE = "there is no value"
NO_JSON = "it is no JSON"
NO_OBJECT = "it is JSON, but no object"
NOT_ONE = "something follows the object"
_OBJECT = "map<string, variant>"
_ARRAY = "array<variant>"


class _ValuePart(NamedTuple):
    """A part of a value: its name, its original form, and its parsed form."""

    name: str
    raw: Column
    parsed: Column

    def no(self, type: DataType) -> Column:
        return f.lit(f"`{self.name}` is no {type.simpleString()}")


def fault(value: Column, parsed: Column, schema: StructType) -> Column:
    """The first fault of a value, as a sentence; null if there is none. `parsed` is the result of
    `from_json`."""
    text = value.cast("string")
    raw = f.try_parse_json(text)
    is_text = f.is_valid_utf8(text)
    is_object = text.rlike(r"^\s*\{")
    # The most frequent case comes first, so that the others are not evaluated.
    return (
        f.when(value.isNull(), NO_VALUE)
        .when(
            is_text & is_object & _stands_alone(text),
            _fault_of_fields(_ValuePart("", raw, parsed), schema),
        )
        .when(~is_text | raw.isNull(), NO_JSON)
        .when(~is_object, NO_OBJECT)
        .otherwise(NOT_ONE)
    )


def _stands_alone(text: Column) -> Column:
    """Whether nothing follows the first JSON value, since Spark's parsers ignore the rest. What
    could follow it in an array (`]`) could not in an object, and the other way round; a comma
    could in both, but then there are more elements."""
    array = f.try_parse_json(f.concat(f.lit("["), text, f.lit("]")))
    object = f.try_parse_json(f.concat(f.lit('{"a":'), text, f.lit("}")))
    alone = (f.size(array.try_cast(_ARRAY)) == 1) & object.isNotNull()
    return f.coalesce(alone, f.lit(False))


def _fault_of_fields(part: _ValuePart, schema: StructType) -> Column:
    fields = part.raw.try_cast(_OBJECT)
    faults = [_fault_of_field(part, fields, field) for field in schema.fields]
    return f.coalesce(*faults, f.lit(None).cast("string"))


def _fault_of_field(parent: _ValuePart, fields: Column, field: StructField) -> Column:
    name = f"{parent.name}.{field.name}" if parent.name else field.name
    raw = f.try_element_at(fields, f.lit(field.name))
    part = _ValuePart(name, raw, parent.parsed.getField(field.name))
    missing = f.lit(None if field.nullable else f"`{name}` is missing")
    return _fault_of(part, field.dataType, missing)


def _fault_of(part: _ValuePart, type: DataType, missing: Column | None = None) -> Column:
    """The fault of a part of this type. The original form is checked only if it has parts itself,
    or was not parsed."""
    nothing = f.lit(None).cast("string")
    absent = part.raw.isNull() | f.is_variant_null(part.raw)
    got = part.parsed.isNotNull()
    inside = nothing
    if isinstance(type, StructType):
        inside = _fault_of_fields(part, type)
    elif isinstance(type, ArrayType):
        inside = _fault_of_elements(part, type)
    elif isinstance(type, MapType):
        inside = _fault_of_entries(part, type)
    elif isinstance(type, VariantType):
        got &= ~f.is_variant_null(part.parsed)
    return (
        f.when(got, inside)
        .when(absent, nothing if missing is None else missing)
        .otherwise(part.no(type))
    )


def _fault_of_elements(part: _ValuePart, type: ArrayType) -> Column:
    raws = part.raw.try_cast(_ARRAY)
    pairs = f.arrays_zip(raws.alias("raw"), part.parsed.alias("parsed"))
    faults = f.transform(
        pairs,
        lambda pair: _fault_of(
            _ValuePart(f"{part.name}[]", pair["raw"], pair["parsed"]), type.elementType
        ),
    )
    same_size = f.coalesce(f.size(raws) == f.size(part.parsed), f.lit(False))
    return f.when(~same_size, part.no(type)).otherwise(_first(faults))


def _fault_of_entries(part: _ValuePart, type: MapType) -> Column:
    raws = part.raw.try_cast(_OBJECT)
    faults = f.transform(
        f.map_entries(raws),
        lambda entry: _fault_of(
            _ValuePart(
                f"{part.name}[]", entry["value"], f.try_element_at(part.parsed, entry["key"])
            ),
            type.valueType,
        ),
    )
    return f.when(raws.isNull(), part.no(type)).otherwise(_first(faults))


def _first(faults: Column) -> Column:
    return f.get(f.array_compact(faults), f.lit(0))
