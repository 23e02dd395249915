"""Run by an interpreter that has stock openenv and gradus installed: the registry finds the graders, and the report is OpenEnv's own."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import jsonschema
from openenv.validation import GraderRegistry, Lane, apply_policy, load_policy
from openenv.validation.graders import Subject
from openenv.validation.parsers.openenv_yaml import OpenEnvYamlParser
from openenv.validation.report import CheckResult
from openenv.validation.runtime.scheduler import execute_graders
from openenv.validation.types import CheckStatus, Level

from gradus.interop.openenv.validation.report import serve_package, validate_package


@dataclass
class Running:
    base_url: str


def by_the_registry(root: Path) -> dict[str, str]:
    """Stock selection, stock scheduling: the entry points are all that is ours."""
    registry = GraderRegistry()
    assert registry.load_entry_points() >= 6
    manifest = OpenEnvYamlParser().parse(root)
    graders = registry.select(manifest, Level.SEMANTIC)
    started = CheckResult(check_id="runtime.startup", status=CheckStatus.PASS, duration_s=0.0)
    with serve_package(root) as url:
        subject = Subject(
            root=root, manifest=manifest, image_ref=None, running=Running(url), outputs_dir=root / "outputs"
        )
        results = execute_graders(graders, subject, prior=[started])
    apply_policy(results, load_policy("v2"), Lane.LOCAL)  # raises for an id that the policy does not know
    return {each.check_id: each.status.value for each in results}


def by_the_report(root: Path) -> dict[str, str]:
    """The operator's report, valid by the schema that OpenEnv ships."""
    import openenv.validation

    document = json.loads(validate_package(root).model_dump_json())
    schema = Path(openenv.validation.__file__).parent / "schemas" / "report-v2.schema.json"
    jsonschema.validate(document, json.loads(schema.read_text()))
    return {each["check_id"]: each["status"] for each in document["results"]} | {"verdict": document["verdict"]}


if __name__ == "__main__":
    roots = [Path(each) for each in sys.argv[1:]]
    print(json.dumps({root.name: {"registry": by_the_registry(root), "report": by_the_report(root)} for root in roots}))
