"""Which numbers of a user's source to change, so that each layer is built with its new widths."""

from __future__ import annotations

import ast
import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dst_analyze.model.user_errors import shorten
from dst_analyze.slimming.patches.sites import Site, UserFile

Place = tuple[str, int, int, int]
"""File, line, first column and column behind the last of a number."""


class NoLiteralError(Exception):
    """A width does not stand as a number in the source; the message says what does."""


class ConflictError(NoLiteralError):
    """One number of the source would have to be two."""


@dataclass(frozen=True)
class Scope:
    """Where an expression stands: its file, the call around it, and the user's calls that led there."""

    file: UserFile
    node: ast.expr
    callers: tuple[Site, ...]


@dataclass
class Numbers:
    """The numbers of the source that have to change, and what each layer wants them to be."""

    files: dict[str, UserFile] = field(default_factory=dict)
    values: dict[Place, int] = field(default_factory=dict)
    old: dict[Place, int] = field(default_factory=dict)
    widths: set[tuple[int, int]] = field(default_factory=set)  # changes of single numbers: a product has such a factor

    def file(self, name: str) -> UserFile:
        """Return a user's file, read once."""
        if name not in self.files:
            try:
                self.files[name] = UserFile(Path(name))
                _ = self.files[name].tree
            except (OSError, UnicodeDecodeError, SyntaxError) as error:
                raise NoLiteralError(f"{shorten(name)} cannot be read as UTF-8 Python source") from error
        return self.files[name]

    def scope_of(self, sites: tuple[Site, ...]) -> tuple[ast.Call, Scope]:
        """Return the call that builds a layer, with its scope."""
        file = self.file(sites[0].file)
        if not sites[0].direct:
            raise NoLiteralError(f"{shorten(file.path)}:{sites[0].line} has a library build it")
        call = file.call_at(sites[0].span)
        if call is None:
            raise NoLiteralError(f"{shorten(file.path)}:{sites[0].line} builds it in a way that is not understood")
        return call, Scope(file, call, sites[1:])

    # --- what an expression should give ---

    def want(self, expression: ast.expr, value: int, scope: Scope) -> None:
        """Let an expression give a value, by a change of one number."""
        if self.evaluate(expression, scope) == value and not isinstance(expression, ast.Constant | ast.Name):
            return
        if isinstance(expression, ast.Constant) and type(expression.value) is int:
            self._set(expression, value, scope)
        elif isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Mult):
            self._want_factor(expression, value, scope)
        else:
            found = self.resolve(expression, scope)
            if found is None:
                raise NoLiteralError(self._said(expression, scope))
            self.want(found[0], value, found[1])

    def _set(self, constant: ast.Constant, value: int, scope: Scope) -> None:
        place = (str(scope.file.path), constant.lineno, constant.col_offset, constant.end_col_offset or 0)
        before = self.values.setdefault(place, value)
        assert isinstance(constant.value, int)
        self.old[place] = constant.value
        if before != value:
            raise ConflictError(
                f"{shorten(scope.file.path)}:{constant.lineno} has one number, {constant.value}, "
                f"for widths that become {min(before, value)} and {max(before, value)}"
            )

    def _want_factor(self, product: ast.BinOp, value: int, scope: Scope) -> None:
        """Change one factor of a product: one that is such a width elsewhere, else the first that can be changed."""
        options = []
        for factor, other in ((product.left, product.right), (product.right, product.left)):
            beside, now = self.evaluate(other, scope), self.evaluate(factor, scope)
            if not beside or now is None or value % beside:
                continue
            options.append((self._holds_width(factor, value // beside, scope), factor, value // beside))
        for _, factor, wanted in sorted(options, key=lambda option: not option[0]):
            kept = dict(self.values), dict(self.old)
            try:
                self.want(factor, wanted, scope)
                return
            except NoLiteralError:
                self.values, self.old = kept
        raise NoLiteralError(self._said(product, scope))

    def _holds_width(self, expression: ast.expr, value: int, scope: Scope) -> bool:
        """Return whether some number in an expression changes as another layer's width does."""
        if isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Mult):
            pairs = ((expression.left, expression.right), (expression.right, expression.left))
            sides = [(one, self.evaluate(other, scope)) for one, other in pairs]
            return any(
                beside and not value % beside and self._holds_width(one, value // beside, scope)
                for one, beside in sides
            )
        found = self.resolve(expression, scope)
        if found is not None:
            return self._holds_width(found[0], value, found[1])
        return isinstance(expression, ast.Constant) and (expression.value, value) in self.widths

    def _said(self, expression: ast.expr, scope: Scope) -> str:
        return f"{shorten(scope.file.path)}:{expression.lineno} has `{ast.unparse(expression)}` where a number would do"

    # --- what an expression gives, and where a name gets its value ---

    def evaluate(self, expression: ast.expr, scope: Scope) -> int | None:
        """Return the value of an expression with the changes so far; None if it is not known."""
        if isinstance(expression, ast.Constant):
            place = (str(scope.file.path), expression.lineno, expression.col_offset, expression.end_col_offset or 0)
            return self.values.get(place, expression.value) if type(expression.value) is int else None
        if isinstance(expression, ast.BinOp):
            one, two = self.evaluate(expression.left, scope), self.evaluate(expression.right, scope)
            if one is None or two is None:
                return None
            if isinstance(expression.op, ast.Mult):
                return one * two
            if isinstance(expression.op, ast.FloorDiv) and two:
                return one // two
            return None
        found = self.resolve(expression, scope)
        return None if found is None else self.evaluate(*found)

    def resolve(self, expression: ast.expr, scope: Scope) -> tuple[ast.expr, Scope] | None:
        """Return the expression that a name stands for: one assignment, an argument of a call, or a default."""
        if not isinstance(expression, ast.Name):
            return None
        function = scope.file.function_around(scope.node)
        if function is not None:
            assigned = list(_assignments(function.body, expression.id))
            if len(assigned) == 1 and assigned[0] is not None and assigned[0] is not expression:
                return assigned[0], Scope(scope.file, assigned[0], scope.callers)
            if assigned:
                return None
            if expression.id in _parameters(function):
                return self._argument(function, expression.id, scope)
        assigned = list(_assignments(scope.file.tree.body, expression.id))
        if len(assigned) == 1 and assigned[0] is not None:
            return assigned[0], Scope(scope.file, assigned[0], ())
        return None

    def _argument(self, function: ast.FunctionDef, name: str, scope: Scope) -> tuple[ast.expr, Scope] | None:
        names = _parameters(function)
        given = names[1:] if names[:1] in (["self"], ["cls"]) else names
        if scope.callers:
            file = self.file(scope.callers[0].file)
            call = file.call_at(scope.callers[0].span)
            if call is None or any(isinstance(arg, ast.Starred) for arg in call.args):
                return None
            if any(keyword.arg is None for keyword in call.keywords):
                return None
            found = dict(zip(given, call.args, strict=False))
            found |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
            if name in found:
                return found[name], Scope(file, found[name], scope.callers[1:])
        defaults = dict(zip(reversed(names), reversed(function.args.defaults), strict=False))
        keywords = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
        defaults |= {argument.arg: value for argument, value in keywords if value is not None}
        return None if name not in defaults else (defaults[name], Scope(scope.file, defaults[name], ()))


def _parameters(function: ast.FunctionDef) -> list[str]:
    return [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]


def _assignments(body: list[ast.stmt], name: str) -> Iterator[ast.expr | None]:
    """Yield what statements assign to a name; None for a loop's variable and the like, which is no one value."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
            if isinstance(target, ast.Name) and target.id == name:
                yield statement.value
                continue
            if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
                for one, value in zip(target.elts, statement.value.elts, strict=False):
                    if isinstance(one, ast.Name) and one.id == name:
                        yield value
                continue
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            if statement.target.id == name and statement.value is not None:
                yield statement.value
            continue
        stored = (n for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
        yield from (None for n in stored if n.id == name)


def replaced(file: UserFile, values: dict[Place, int]) -> str:
    """Return the text of a file with other numbers; everything else stays as it is."""
    lines = [line.encode() for line in lines_of(file.text)]
    for (_, line, start, end), value in sorted(values.items(), reverse=True):
        old = lines[line - 1]
        lines[line - 1] = old[:start] + str(value).encode() + old[end:]
    return b"".join(lines).decode()


def lines_of(text: str) -> list[str]:
    """Return the lines of a source text as Python counts them, with their ends as they are."""
    return io.StringIO(text, newline="").readlines()
