"""A Griffe extension: the comment at the end of a line describes its field in the reference of the Python API."""

import re
from typing import Any

import griffe

COMMENT = re.compile(r"  # (.+)$")


class FieldComments(griffe.Extension):
    """Describe fields that have no docstring by their comments."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Use the comment of a field as its docstring."""
        if attr.docstring is None and attr.lineno and attr.endlineno:
            comment = COMMENT.search(attr.lines_collection[attr.filepath][attr.endlineno - 1])
            if comment and not comment[1].startswith(("type:", "noqa")):
                attr.docstring = griffe.Docstring(comment[1][0].upper() + comment[1][1:] + ".", parent=attr)
