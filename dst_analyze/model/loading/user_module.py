"""Import of a user's Python file: with its sibling modules and fresh state, without bytecode files."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import sys
import threading
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from dst_analyze.errors import ModelError
from dst_analyze.model.loading import torchvision_compat
from dst_analyze.model.loading.module_finder import (
    MADE_FROM_FILE,
    FileSpec,
    package_of,
    package_root,
    publish_module_path,
)
from dst_analyze.model.user_errors import did_you_mean, is_installed, place_here, shorten, user_code, user_trace
from dst_analyze.package import PACKAGE

SPEC_FORMS = (
    "a model is given as mymodel.py, mymodel.py:Net, package.module:factory, "
    "torchvision:NAME, timm:NAME or example:NAME"
)

_folders: set[Path] = set()
_brought: dict[Path, set[str]] = {}
"""Names of the modules that a model's file has imported when it was run, by that file."""


@dataclass(frozen=True)
class UserModule:
    """An imported module of the user's, its file, and the folder that its imports start from, if any."""

    module: ModuleType
    label: str
    file: Path | None
    folder: Path | None

    @property
    def place(self) -> str:
        """The file's path as error messages show it."""
        return shorten(self.file) if self.file else ""


@contextmanager
def no_arguments(file: Path | None) -> Iterator[None]:
    """Let a user's code see a command line without arguments, as those of this program are not meant for it."""
    before = sys.argv
    sys.argv = [str(file) if file else (before[0] if before else "")]
    try:
        yield
    finally:
        sys.argv = before


@contextmanager
def imports_from(folder: Path | None, file: Path | None = None) -> Iterator[None]:
    """Let a user's code import torchvision, and its siblings before all others; what ``file`` imports is kept.

    The folder stays on the path afterwards, since imports inside functions run later. No bytecode is written to it.
    The code sees no arguments of the command line.
    """
    with no_arguments(file), _imports_from(folder, file):
        yield


@contextmanager
def _imports_from(folder: Path | None, file: Path | None) -> Iterator[None]:
    torchvision_compat.make_importable()
    if folder is None:
        yield
        return
    importlib.invalidate_caches()
    bytecode, known, before = sys.dont_write_bytecode, str(folder) in sys.path, set(sys.modules)
    sys.dont_write_bytecode = True
    _forget_namesakes(folder)
    _folders.add(folder)
    sys.path.insert(0, str(folder))
    try:
        with no_exit(str(file or folder)):
            yield
    finally:
        if file is not None:
            _brought.setdefault(file, set()).update(set(sys.modules) - before)
        sys.dont_write_bytecode = bytecode
        if known and str(folder) in sys.path:
            sys.path.remove(str(folder))


@contextmanager
def passing_imports(folder: Path) -> Iterator[None]:
    """Forget what is imported from a folder inside the block, and bring back the modules that it has replaced."""
    modules, path = dict(sys.modules), list(sys.path)
    try:
        yield
    finally:
        for name, module in list(sys.modules.items()):
            file = _file_of(module)
            if name not in modules and file is not None and file.is_relative_to(folder):
                del sys.modules[name]
        sys.modules.update(modules)
        sys.path[:] = path
        for known in [known for known in _folders if known.is_relative_to(folder)]:
            _folders.discard(known)


def _forget_namesakes(folder: Path) -> None:
    """Unload modules of other model folders that share a name with one in this folder (`layers.py`)."""
    others = _folders - {folder}
    names = {entry.stem if entry.suffix == ".py" else entry.name for entry in folder.iterdir()} - {PACKAGE.name}
    loaded = [(name, name.partition(".")[0]) for name in sys.modules]
    stale = {top for name, top in loaded if top in names and _root(name) in others}
    for name, top in loaded:
        if top in stale:
            del sys.modules[name]


def _root(name: str) -> Path | None:
    """Return the folder from which a module was imported: above all its packages."""
    file = _file_of(sys.modules[name])
    if file is None:
        return None
    above = name.count(".") + (file.stem == "__init__")
    return file.parents[above] if above < len(file.parents) else None


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)  # not every module has one: packages without __init__.py, builtins
    return Path(file) if file else None


def imported_files() -> set[Path]:
    """Return the user's imported Python files: models' files and their siblings, nothing installed."""
    files = {file for module in list(sys.modules.values()) if (file := _file_of(module)) and file.suffix == ".py"}
    return {
        file
        for file in files
        if not is_installed(file) and any(file.is_relative_to(folder) for folder in _folders) and file.is_file()
    }


def files_of_model(file: Path) -> set[Path]:
    """Return a model's file and all files of the user's that it has imported, nothing that is installed."""
    files = {
        name: there
        for name, module in list(sys.modules.items())
        if (there := _file_of(module)) and there.suffix == ".py" and not is_installed(there) and there.is_file()
    }
    names = {there: name for name, there in files.items()}
    found: set[Path] = set()
    todo = [file, *(files[name] for name in _brought.get(file, ()) if name in files)]
    while todo:
        one = todo.pop()
        if one not in found and not is_installed(one):
            found.add(one)
            todo += [files[name] for name in _imports(one, names.get(one, "")) if name in files]
    return found


def _imports(file: Path, module: str) -> Iterator[str]:
    """Yield the names of all modules that a file may import, with the packages they are in."""
    package = module if file.stem == "__init__" else module.rpartition(".")[0]
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            given = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join(filter(None, [*above, node.module or ""]))
            given = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in given:
            parts = name.split(".")
            yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))


@contextmanager
def no_exit(what: str) -> Iterator[None]:
    """Make os._exit() an error for user code that runs here: nothing would say why the program is gone."""
    leave, mine, active = os._exit, (os.getpid(), threading.get_ident()), True

    def refuse(status: int) -> NoReturn:
        if active and mine == (os.getpid(), threading.get_ident()):  # a process that user code has forked may leave
            raise ModelError(
                f"{shorten(what)} called os._exit({status!r}), which would end the program without a word.",
                place=shorten(place_here() or what),
                hint="keep scripts below `if __name__ == '__main__':`, which is not run here",
            )
        leave(status)

    os._exit = refuse
    try:
        yield
    finally:
        active = False
        os._exit = leave


def import_file(path: Path) -> UserModule:
    """Return a user's file as a new module, entered in sys.modules so that its classes pickle."""
    file = _checked(path)
    name = _module_name(file)
    root = package_root(file)
    spec = FileSpec(name, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    publish_module_path(name, file)
    try:
        with ExitStack() as stack:
            if root is not None:  # its relative imports start from there
                stack.enter_context(imports_from(root, file))
            stack.enter_context(imports_from(file.parent, file))
            stack.enter_context(_importing(path.name, file))
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return UserModule(module, str(path), file, file.parent)


def _module_name(file: Path) -> str:
    """Return a module name for a file; the first is the same in every process, as pickles need."""
    base = f"{MADE_FROM_FILE}{re.sub(r'[^0-9A-Za-z_]', '_', file.stem)}_{zlib.crc32(str(file).encode()):08x}"
    name, count = base, 1
    while name in sys.modules:
        count += 1
        name = f"{base}_{count}"
    return name


def import_named(name: str) -> UserModule:
    """Return a module by its dotted name, with the current folder on the path."""
    with imports_from(Path.cwd(), Path(name)), _importing(name, None):
        try:
            if all(name.split(".")):
                module = importlib.import_module(name)
                return UserModule(module, name, _file_of(module), Path.cwd())
        except ModuleNotFoundError as error:
            if not f"{name}.".startswith(f"{error.name}."):  # found, but something that it imports is missing
                raise
        raise ModelError(
            f"There is no module {name!r}.",
            place=shorten(Path.cwd()),
            hint=did_you_mean(f"{name}.py", (path.name for path in Path.cwd().glob("*.py")), SPEC_FORMS),
        )


@contextmanager
def _importing(label: str, file: Path | None) -> Iterator[None]:
    """Raise `ModelError` for any error of an import inside the block, with hints for import errors."""
    with user_code(f"{label}, while being imported,", file=file, hint="the file must be importable by itself first"):
        try:
            yield
        except (SyntaxError, ImportError) as error:
            place, trace = user_trace(error, file)
            raise ModelError(
                f"{label} cannot be imported: {error.msg}.",
                place=place,
                trace=trace,
                hint=_SYNTAX_HINT if isinstance(error, SyntaxError) else _import_hint(error, label, file),
            ) from error


_SYNTAX_HINT = "this is an error in the file itself: `python -m py_compile` shows it too"

# Packages whose import name differs from the name to install.
_PACKAGES = {
    "cv2": "opencv-python",
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "yaml": "pyyaml",
}


def _import_hint(error: ImportError, label: str, file: Path | None) -> str:
    package = package_of(file) if file else ""
    missing = isinstance(error, ModuleNotFoundError) and bool(package) and (error.name or "").startswith(package)
    if missing or "relative import" in str(error):
        return "is it in the folder of its package? it may also be given as a module: package.module"
    if isinstance(error, ModuleNotFoundError) and error.name:
        top = error.name.partition(".")[0]
        return f"install it beside dst-analyze (pip install {_PACKAGES.get(top, top)}), or put {top}.py next to {label}"
    return f"is another version of {error.name or 'that package'} installed than {label} was written for?"


def _checked(path: Path) -> Path:
    """Return the absolute path of a user's Python file; raise `ModelError` if it is none."""
    place = str(path)
    if path.is_dir():
        scripts = sorted(entry.name for entry in path.glob("*.py"))
        hint = f"name the file in it, for example {path / scripts[0]}" if scripts else "name a Python file"
        raise ModelError(f"{path} is a folder, not a Python file.", place=place, hint=hint)
    if not path.exists():
        raise ModelError(f"There is no file {path}.", place=place, hint=_missing_file_hint(path))
    if path.suffix == ".ipynb":
        raise ModelError(
            f"{path} is a notebook, not a Python file.",
            place=place,
            hint=f"`jupyter nbconvert --to script {path.name}` writes {path.stem}.py; "
            "or call dst_analyze.analyze(model, data) in the notebook",
        )
    if path.suffix != ".py":
        raise ModelError(
            f"{path} is not a Python file.",
            place=place,
            hint="give the .py file that builds the model; weights can be loaded in its build_model()",
        )
    return path.resolve()


def _missing_file_hint(path: Path) -> str:
    if not path.parent.is_dir():
        return f"there is no folder {path.parent} either"
    scripts = sorted(entry.name for entry in path.parent.glob("*.py"))
    nothing = f"the Python files in {path.parent.resolve()} are: {', '.join(scripts[:8])}" if scripts else SPEC_FORMS
    return did_you_mean(path.name, scripts, nothing)
