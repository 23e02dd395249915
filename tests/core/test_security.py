"""What the source must not do."""

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


def _calls(tree: ast.AST) -> set[str]:
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


def test_nothing_is_executed_from_data() -> None:
    for file in SOURCE.rglob("*.py"):
        name, text = file.relative_to(SOURCE).as_posix(), file.read_text(encoding="utf-8")
        tree = ast.parse(text)
        keywords = {
            (word.arg, ast.unparse(word.value))
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            for word in node.keywords
        }
        assert ("trust_remote_code", "True") not in keywords, name
        assert ("weights_only", "False") not in keywords, name
        assert ("shell", "True") not in keywords, name
        calls = _calls(tree)
        assert not calls & {"pickle.loads", "pickle.load", "joblib.load", "dill.loads", "marshal.loads"}, name
        assert not calls & {"yaml.load", "yaml.unsafe_load", "os.system"}, name
        if "torch.load" in calls:
            assert "weights_only=True" in text, name
