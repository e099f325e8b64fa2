"""A user's own Python: importing it, choosing the model in it, showing its failures in the user's frames only."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import re
import sys
import sysconfig
import traceback
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard

from torch import nn

from dst_analyze.errors import DstError, ModelError
from dst_analyze.model import vision

# --- failures, in the user's frames only ---------------------------------------------------------------------------

_OURSELVES = Path(__file__).parents[1]
_LIBRARIES = tuple(
    f"{folder}{os.sep}" for folder in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), _OURSELVES)
)
_INSTALLED = re.compile(r"[\\/](site|dist)-packages[\\/]")
_TYPED_IN = ("<stdin>", "<ipython")


def _is_users(filename: str, file: Path | None) -> bool:
    """Whether a frame lies in code the user wrote: not the standard library, an installed package or this one."""
    if filename.startswith("<"):
        return filename.startswith(_TYPED_IN)
    if file is not None and filename == str(file):
        return True
    return not filename.startswith(_LIBRARIES) and not _INSTALLED.search(filename)


def user_trace(error: BaseException, file: Path | None = None) -> tuple[str, str]:
    """Where in the user's code an exception arose, and its traceback cut to the user's frames; else the file alone."""
    report = traceback.TracebackException.from_exception(error)
    _cut(report, file)
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).is_file():
        return f"{shorten(error.filename)}:{error.lineno or 1}", "".join(report.format_exception_only())
    if not report.stack:
        return shorten(file) if file else "", ""
    last = report.stack[-1]
    return f"{shorten(last.filename)}:{last.lineno}", "".join(report.format())


def _cut(report: traceback.TracebackException, file: Path | None) -> None:
    kept = [frame for frame in report.stack if _is_users(frame.filename, file)]
    report.stack = traceback.StackSummary.from_list(kept)
    for chained in (report.__cause__, report.__context__, *(report.exceptions or ())):
        if chained is not None:
            _cut(chained, file)


def shorten(path: str | os.PathLike[str]) -> str:
    """A path as a user would type it: relative where it lies below the current folder."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return os.fspath(path)


def headline(error: BaseException) -> str:
    """An exception in one line."""
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


@contextmanager
def running(
    what: str, kind: type[DstError] = ModelError, *, file: Path | None = None, hint: str = ""
) -> Iterator[None]:
    """Runs a user's code: whatever it raises becomes an error of ours that shows the user's frames only."""
    try:
        yield
    except DstError:
        raise
    except SystemExit as stop:
        raise kind(
            f"{what} called sys.exit({stop.code!r}).",
            place=user_trace(stop, file)[0],
            hint=f"keep scripts below `if __name__ == '__main__':`, which is not run here{'; ' + hint if hint else ''}",
        ) from stop
    except Exception as error:
        place, trace = user_trace(error, file)
        raise kind(f"{what} raised {headline(error)}", place=place, trace=trace, hint=hint) from error


# --- hints ---------------------------------------------------------------------------------------------------------


def did_you_mean(wanted: str, known: Iterable[str], otherwise: str = "") -> str:
    """A hint that names what is close to a misspelt name."""
    known = list(known)
    lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(wanted.lower(), lower, n=4, cutoff=0.6)
    return f"did you mean {_either(lower[name] for name in close)}?" if close else otherwise


def _either(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last


SPEC_FORMS = "a model is given as mymodel.py, mymodel.py:Net, package.module:factory, torchvision:NAME or timm:NAME"


# --- importing -----------------------------------------------------------------------------------------------------

_folders: set[Path] = set()


@dataclass(frozen=True)
class UserModule:
    """A user's module: as the user wrote it, the file it comes from, and the folder its imports start from."""

    module: ModuleType
    label: str
    file: Path | None
    folder: Path

    @property
    def place(self) -> str:
        return shorten(self.file) if self.file else ""


@contextmanager
def imports_from(folder: Path | None) -> Iterator[None]:
    """Lets a user's code import torchvision, and its siblings before all others.

    The folder stays on the path afterwards, as imports inside functions need it later. No bytecode is left in it.
    """
    vision.make_importable()
    if folder is None:
        yield
        return
    importlib.invalidate_caches()
    bytecode, known = sys.dont_write_bytecode, str(folder) in sys.path
    sys.dont_write_bytecode = True
    _forget_namesakes(folder)
    _folders.add(folder)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.dont_write_bytecode = bytecode
        if known and str(folder) in sys.path:
            sys.path.remove(str(folder))


def _forget_namesakes(folder: Path) -> None:
    """Two folders may each hold a `layers.py`: the one imported for another user's file must not serve this one."""
    others = _folders - {folder}
    names = {entry.stem if entry.suffix == ".py" else entry.name for entry in folder.iterdir()} - {_OURSELVES.name}
    loaded = [(name, name.partition(".")[0]) for name in sys.modules]
    stale = {top for name, top in loaded if top in names and _root(name) in others}
    for name, top in loaded:
        if top in stale:
            del sys.modules[name]


def _root(name: str) -> Path | None:
    """The folder from which a module was imported: above all its packages."""
    file = _file_of(sys.modules[name])
    if file is None:
        return None
    above = name.count(".") + (file.stem == "__init__")
    return file.parents[above] if above < len(file.parents) else None


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)  # not every module has one: packages without __init__.py, builtins
    return Path(file) if file else None


def import_file(path: Path) -> UserModule:
    """A user's file as a new module, with its own state and, so that its classes pickle, an entry in sys.modules."""
    file = _checked(path)
    name = _module_name(file)
    loader = SourceFileLoader(name, str(file))
    spec = ModuleSpec(name, loader, origin=str(file))
    spec.has_location = True
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with imports_from(file.parent), _importing(path.name, file):
            loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return UserModule(module, str(path), file, file.parent)


def _module_name(file: Path) -> str:
    """The same in every process for a file's first import, as objects pickled in one are read in another."""
    base = f"dst_user_{re.sub(r'[^0-9A-Za-z_]', '_', file.stem)}_{zlib.crc32(str(file).encode()):08x}"
    name, count = base, 1
    while name in sys.modules:
        count += 1
        name = f"{base}_{count}"
    return name


def import_named(name: str) -> UserModule:
    """A module by its dotted name, the current folder being on the path."""
    with imports_from(Path.cwd()), _importing(name, None):
        try:
            if all(name.split(".")):
                module = importlib.import_module(name)
                return UserModule(module, name, _file_of(module), Path.cwd())
        except ModuleNotFoundError as error:
            if not f"{name}.".startswith(f"{error.name}."):  # found, but it lacks something itself
                raise
        raise ModelError(
            f"There is no module {name!r}.",
            place=shorten(Path.cwd()),
            hint=did_you_mean(f"{name}.py", (path.name for path in Path.cwd().glob("*.py")), SPEC_FORMS),
        )


@contextmanager
def _importing(label: str, file: Path | None) -> Iterator[None]:
    """An import's own two failures, told apart from whatever else a user's code may raise meanwhile."""
    with running(f"{label}, while being imported,", file=file, hint="the file must be importable by itself first"):
        try:
            yield
        except (SyntaxError, ImportError) as error:
            place, trace = user_trace(error, file)
            raise ModelError(
                f"{label} cannot be imported: {error.msg}.",
                place=place,
                trace=trace,
                hint=_SYNTAX_HINT if isinstance(error, SyntaxError) else _import_hint(error, label),
            ) from error


_SYNTAX_HINT = "this is an error in the file itself: `python -m py_compile` shows it too"

# Where what is imported and what is installed have different names.
_PACKAGES = {
    "cv2": "opencv-python",
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "yaml": "pyyaml",
}


def _import_hint(error: ImportError, label: str) -> str:
    if "relative import" in str(error):
        return "a file inside a package is given as a module: package.module or package.module:Name"
    if isinstance(error, ModuleNotFoundError) and error.name:
        top = error.name.partition(".")[0]
        return f"install it beside dst-analyze (pip install {_PACKAGES.get(top, top)}), or put {top}.py next to {label}"
    return f"is another version of {error.name or 'that package'} installed than {label} was written for?"


# --- choosing ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """What a spec leads to: a model, or something that builds one when called; and where it was found."""

    value: nn.Module | Callable[..., Any]
    label: str
    origin: UserModule | None = None

    @property
    def file(self) -> Path | None:
        return self.origin.file if self.origin else None

    @property
    def folder(self) -> Path | None:
        return self.origin.folder if self.origin else None

    @property
    def place(self) -> str:
        return self.origin.place if self.origin else ""


def find_named(start: UserModule, path: str) -> Found:
    """The object a user named, `Net` or `zoo.small`, if it can be a model."""
    value: Any = start.module
    for part in path.split("."):
        if not hasattr(value, part):
            names = [name for name in dir(value) if not name.startswith("_")]
            otherwise = f"write {start.label}:NAME with a class, a function or a model defined there"
            raise ModelError(
                f"There is no {path!r} in {start.label}.", place=start.place, hint=did_you_mean(part, names, otherwise)
            )
        value = getattr(value, part)
    if not can_be_model(value):
        raise ModelError(
            f"{start.label}:{path} is {a_thing(value)}, not a model.",
            place=start.place,
            hint="name an nn.Module class, a function that returns a model, or a model",
        )
    return Found(value, f"{start.label}:{path}", start)


def find_unnamed(start: UserModule, arguments: Collection[str]) -> Found:
    """`build_model`, else `model`, else the only class of the file that the arguments given are enough for."""
    for name in ("build_model", "model"):
        value = getattr(start.module, name, None)
        if can_be_model(value):
            return Found(value, f"{start.label}:{name}", start)
    classes = _own_classes(start.module)
    ready = [kind for kind in classes if not Call(kind, arguments).wrong]
    if len(ready) == 1 or len(classes) == 1:
        (kind,) = ready or classes
        return Found(kind, f"{start.label}:{kind.__name__}", start)
    raise _no_choice(start, classes, ready, arguments)


def _no_choice(
    start: UserModule, classes: list[type[nn.Module]], ready: list[type[nn.Module]], arguments: Collection[str]
) -> ModelError:
    label = start.label
    if ready:
        return ModelError(
            f"{label} has {len(ready)} classes that could be the model: {', '.join(kind.__name__ for kind in ready)}.",
            place=start.place,
            hint=f"choose one, {label}:{ready[-1].__name__}, or define build_model()",
        )
    if classes:
        signatures = ", ".join(f"{kind.__name__}({', '.join(Call(kind, ()).takes)})" for kind in classes)
        return ModelError(
            f"No class in {label} can be built with {', '.join(arguments) or 'no arguments'}: {signatures}.",
            place=start.place,
            hint=f"choose one and pass its arguments, {label}:{classes[-1].__name__} --model-arg name=value, "
            "or define build_model()",
        )
    return ModelError(
        f"{label} has no model: no build_model(), no `model`, no nn.Module class of its own.",
        place=start.place,
        hint=f"define build_model() that returns the model, or name it: {label}:NAME",
    )


def can_be_model(value: object) -> TypeGuard[nn.Module | Callable[..., Any]]:
    """A model, a class of models, or a function that may return one."""
    return issubclass(value, nn.Module) if isinstance(value, type) else callable(value)


def _own_classes(module: ModuleType) -> list[type[nn.Module]]:
    """Public nn.Module classes written in this very file, each once, in the file's order."""
    values = dict.fromkeys(value for value in vars(module).values() if isinstance(value, type))
    own = (value for value in values if issubclass(value, nn.Module) and value.__module__ == module.__name__)
    return [value for value in own if not value.__name__.startswith("_")]


def a_thing(value: object) -> str:
    """What a value is, in words: `a dict`, `the class Config`, `None`."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


class Call:
    """Whether a function can be called with some keywords: what it would miss, and what it does not take."""

    def __init__(self, function: Callable[..., Any], arguments: Collection[str]) -> None:
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):  # written in C, without a signature: only calling it tells
            self.takes: list[str] = []
            self.missing: list[str] = []
            self.unknown: list[str] = []
            return
        named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        anything = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self.takes = [p.name for p in named if p.kind is not p.POSITIONAL_ONLY]
        self.missing = [p.name for p in named if p.default is p.empty and p.name not in arguments]
        self.unknown = [name for name in arguments if name not in self.takes and not anything]

    @property
    def wrong(self) -> bool:
        return bool(self.missing or self.unknown)


# --- files ---------------------------------------------------------------------------------------------------------


def _checked(path: Path) -> Path:
    """The file a user named, absolute; or what is wrong with it."""
    place = str(path)
    if path.is_dir():
        scripts = sorted(entry.name for entry in path.glob("*.py"))
        hint = f"name the file in it, for example {path / scripts[0]}" if scripts else "name a Python file"
        raise ModelError(f"{path} is a folder, not a Python file.", place=place, hint=hint)
    if not path.exists():
        raise ModelError(f"There is no file {path}.", place=place, hint=_missing_file_hint(path))
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
