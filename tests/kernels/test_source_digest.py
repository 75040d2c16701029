"""The digest of a kernel follows its imports and nothing else."""

import pytest

from trnrt_kernels.source_digest import source_digest


@pytest.fixture
def package(tmp_path):
    sources = {
        "__init__.py": "",
        "kda.py": "from pack.common import norm\nimport torch\n",
        "moe.py": "def f():\n    from pack.common.experts import pick\n",
        "common/__init__.py": "",
        "common/norm.py": "EPS = 1\n",
        "common/experts.py": "import pack.common.norm\n",
        "common/router.py": "",
    }
    for name, text in sources.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def digests(root):
    return {
        name: source_digest([f"pack.{name}"], root=root, package="pack") for name in ("kda", "moe")
    }


@pytest.mark.parametrize(
    ("edited", "changed"),
    [
        ("kda.py", {"kda"}),
        ("common/experts.py", {"moe"}),
        ("common/norm.py", {"kda", "moe"}),
        ("common/router.py", set()),
    ],
)
def test_an_edit_changes_exactly_what_imports_it(package, edited, changed):
    before = digests(package)
    path = package / edited
    path.write_text(path.read_text() + "# edited\n")
    after = digests(package)
    assert {name for name in before if before[name] != after[name]} == changed


def test_a_new_import_is_followed(package):
    before = digests(package)
    (package / "kda.py").write_text("import pack.common.router\n")
    linked = digests(package)
    (package / "common/router.py").write_text("X = 1\n")
    assert digests(package)["kda"] not in (before["kda"], linked["kda"])


def test_a_module_without_source_is_named(package):
    with pytest.raises(ModuleNotFoundError, match=r"pack\.gone"):
        source_digest(["pack.gone"], root=package, package="pack")
