"""Rows of HumanEval and MBPP, whose tests are asserts, as rows for the reward `code_tests`."""

import ast
import json


def as_tests(asserts, name=None):
    """The asserts ``CALL == VALUE`` of a text as tests; ``name``: what stands in place of HumanEval's ``candidate``."""
    tests = []
    for each in ast.walk(ast.parse(asserts)):
        match each:
            case ast.Assert(
                test=ast.Compare(left=ast.Call() as call, ops=[ast.Eq()], comparators=[ast.expr() as value])
            ):
                call.func = ast.Name(name) if name else call.func
                try:
                    test = {"call": ast.unparse(call), "expected": ast.literal_eval(value)}
                    json.dumps(test)
                    tests.append(test)
                except (ValueError, TypeError):  # no value that JSON has
                    pass
    return tests


def from_humaneval(row):
    tests = as_tests(row["test"], row["entry_point"])
    return {"question": row["prompt"], "answer": row["prompt"] + row["canonical_solution"], "tests": tests}


def from_mbpp(row):
    tests = as_tests("\n".join(row["test_list"]))
    return {"question": row["text"] + " Tests: " + " ".join(row["test_list"]), "answer": row["code"], "tests": tests}
