"""A summary as JUnit XML, for programs that show test results.

Owns the form: one suite a version, one case a check and prompt. A check that does not hold is a failure; one that could
not be made is an error. Source: the schema of Jenkins' xUnit plugin, junit-10.xsd, which most readers follow.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from xml.etree import ElementTree

from proxy.core.version_names import label

_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(summary: Mapping[str, Any]) -> bytes:
    root = ElementTree.Element("testsuites", name=_text(summary["file"]))
    moment = datetime.fromtimestamp(summary["created_at"], UTC).isoformat(timespec="seconds").removesuffix("+00:00")
    for number, version in enumerate(summary["versions"]):
        name = label(version["version"])
        suite = ElementTree.SubElement(root, "testsuite", name=name, id=str(number), timestamp=moment, time="0")
        counts = {"tests": 0, "failures": 0, "errors": 0}
        for row in (row for row in summary["rows"] if row["version"] == version["version"]):
            for case in _cases(row, name):
                suite.append(case)
                counts["tests"] += 1
                counts["failures"] += case.find("failure") is not None
                counts["errors"] += case.find("error") is not None
        suite.attrib |= {key: str(count) for key, count in counts.items()}
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))


def _cases(row: Mapping[str, Any], version: str) -> list[ElementTree.Element]:
    prompt = _text(row["prompt"]) + (" (trained)" if row["trained"] else "")
    if row["problem"]:
        case = ElementTree.Element("testcase", classname=f"{version}.answer", name=prompt, time="0")
        ElementTree.SubElement(case, "error", message=_text(row["problem"]), type="no answer")
        return [case]
    cases = []
    for check, verdict in row["verdicts"].items():
        case = ElementTree.Element("testcase", classname=f"{version}.{_text(check)}", name=prompt, time="0")
        if verdict["ok"] is not True:
            kind = "failure" if verdict["ok"] is False else "error"
            ElementTree.SubElement(case, kind, message=_text(verdict["reason"]), type=_text(check))
        cases.append(case)
    return cases


def _text(text: str) -> str:
    """Without the characters that no XML may have."""
    return _NOT_XML.sub("\ufffd", text)
