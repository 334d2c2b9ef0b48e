"""Templates in commands and SQL: each `{{…}}` becomes a parameter, so that no value is ever read as a program.

    shell_template("grep {{$.word}} log")      grep "${1}" log            the value is a word, whatever is in it
    sql_template("… name = '{{$.name}}'")      … name = (($1)::text)      the value is bound

A template is refused where its value could still become a program: as the name of a command, in the text that another
interpreter runs (`sh -c`, `eval`, `awk`) or reads (`… | sh`), in a here-document, in an identifier of SQL. A value that
begins a word is refused when it begins with `-`, since it would be an option of the command.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from tidemill.core.errors import ConfigError
from tidemill.pipelines.workflows.expressions.javascript import Hole, alone_in, find_holes, replace_holes

_ASSIGNMENT = re.compile(r"\w+=")
#: Variables that choose which program, or which code of it, is run.
_CHOOSES_CODE = re.compile(
    r"(PATH|IFS|ENV|BASH_ENV|SHELL|PAGER|EDITOR|LD_\w+|PYTHON\w+|PERL5\w+|RUBY\w+|NODE_\w+|GIT_\w+)=\Z"
)

#: Words after which the next word is a command as well.
_WRAPPERS = {
    "if", "then", "else", "elif", "while", "until", "do", "!", "{", "time", "exec", "command", "builtin", "env", "sudo",
    "doas", "nohup", "nice", "setsid", "timeout", "xargs", "stdbuf", "chroot", "busybox", "ionice", "flock", "strace",
    "taskset", "chrt", "unshare", "nsenter", "runuser", "gosu", "systemd-run", "xvfb-run",
    "-exec", "-execdir", "-ok", "-okdir",
}  # fmt: skip
#: How many words stand before the command that these run; and the options whose value is a word of its own.
_OPERANDS = {"chroot": 1, "flock": 1, "taskset": 1, "gosu": 1, "timeout": 1, "chrt": 1}
_VALUED = {
    "sudo": "ughpCDRT", "doas": "uC", "env": "uC", "xargs": "InPLsadE", "nice": "n", "ionice": "cnp", "stdbuf": "ioe",
    "timeout": "sk", "flock": "wE", "exec": "a", "strace": "eopsu", "runuser": "u", "unshare": "R", "systemd-run": "pu",
}  # fmt: skip
_SHELLS = {"sh", "bash", "dash", "ash", "zsh", "ksh", "fish"}
#: Commands whose arguments are read as a program: every argument, or the first one and those after these options.
_ALWAYS = {"eval", "source", ".", "ssh", "su", "at", "batch", "watch", "trap", "script", "make", "gmake", "parallel",
           "alias", "gdb", "dc"}  # fmt: skip
_FIRST = {"awk", "gawk", "mawk", "nawk", "sed", "jq"}
#: Options of other commands whose value is a program, or chooses one.
_RUN_BY_OPTION = {
    "git": r"-c|--(exec-path|upload-pack|receive-pack|config-env)", "rsync": r"-e|--(rsh|rsync-path)",
    "tar": r"-I|-F|--(use-compress-program|checkpoint-action|to-command|info-script|new-volume-script|rsh-command)",
    "tcpdump": r"-z", "zip": r"-TT|--unzip-command", "man": r"-P|-H|--(pager|html)", "sort": r"--compress-program",
    "split": r"--filter", "scp": r"-S|-o", "sftp": r"-S|-o|-D", "curl": r"-K|--config", "docker": r"--entrypoint",
}  # fmt: skip
_PROGRAM = re.compile(r"(-e|-f|--expression|--file|--source|--from-file)\Z")
_LANGUAGE = re.compile(r"(python[\d.]*|perl|ruby|node|nodejs|php|lua|deno)\Z")
_BY_OPTION = re.compile(rf"({_LANGUAGE.pattern[:-2]}|psql|sqlite3|mysql|vim?|ed|ex)\Z")
_OPTION = re.compile(r"-\w*[ceErpf]\w*\Z|--(eval|exec|command|execute|print)\b")
#: Languages whose program sees further words as arguments, and opens none of them by itself.
_TAKES_ARGUMENTS = re.compile(r"(python[\d.]*|node|nodejs)\Z")
#: The path of a script: it begins with no `-`, so that an interpreter never reads it as an option.
_SCRIPT_FILE = re.compile(r"(?!inspect\Z)[\w./~][\w./~@%+:=,-]*\Z")
_SHELL_PROGRAM = re.compile(r"-\w*[cs]")
_REDIRECT = re.compile(r">>?[ \t]*")

#: Commands that read a program from their input, unless they are given one in another way.
_BY_INPUT = _SHELLS | {"psql", "mysql", "sqlite3", "at", "batch", "bc", "ed", "ex"}
_INPUT = ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*|[0-9@*])")


class TemplateError(ConfigError):
    """A template whose value could become a program, or choose a database or a file elsewhere."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class SafeTemplate(msgspec.Struct, frozen=True):
    """A text with parameters, and the expression of each."""

    text: str
    expressions: tuple[str, ...]
    words: frozenset[int] = frozenset()
    """The expressions, by number from 0, that begin a word which the command could read as an option."""


class _Command(msgspec.Struct):
    """A simple command of a script, as far as it has been read."""

    words: list[str] = []
    names: list[int] = []
    """The places of words that are run: the command, and what `sudo` or `xargs` run."""
    word: str | None = None
    wants_name: bool = True
    skips: int = 0
    """How many words the wrapper takes before the command that it runs."""
    target: int | None = None  # where the file of a `>` begins in the script, until that word ends

    def end_word(self) -> None:
        word, self.word = self.word, None
        if word is None:
            return
        if self.wants_name and self.names and len(word) == 2 and word[0] == "-":
            self.skips += word[1] in _VALUED.get(self.name(self.names[-1]), "")
        elif self.wants_name and self.skips and not word.startswith("-"):
            self.skips -= 1
        elif self.wants_name and not _ASSIGNMENT.match(word) and not word.startswith(("-", ">", "<")):
            name = word.rpartition("/")[2]
            self.names.append(len(self.words))
            self.wants_name = name in _WRAPPERS or word.replace(".", "", 1).isdigit()
            self.skips = _OPERANDS.get(name, 0)
        elif word in ("-exec", "-execdir", "-ok", "-okdir"):
            self.wants_name = True
        self.words.append(word)

    def name(self, at: int) -> str:
        return self.words[at].rpartition("/")[2]

    def could_be_option(self) -> bool:
        """Whether the command could read a word that begins here with a value as an option."""
        if (self.word or "").strip("\0") or (self.words and self.words[-1].endswith((">", "<"))):
            return False
        return not takes_no_options(self.words[self.names[-1] :]) if self.names else False

    def check_beside(self, hole: str, script: str = "") -> None:
        """Refuse a command that could run a value that another command of the script, or its input, passes on."""
        for at in self.names:
            name, after = self.name(at), self.words[at + 1 :]
            operands = [each for each in after if not each.startswith("-")]
            takes_input = not operands or operands[0] in _INPUT
            if (
                name in {"eval", "source", ".", "trap", "parallel", "at", "batch", "crontab"}
                or (name in _SHELLS and takes_input)
                or (name in _SHELLS and not _SCRIPT_FILE.match(after[0]) and any(map(_SHELL_PROGRAM.match, after)))
                or (name in _BY_INPUT and all(each.startswith("-") and each != "-f" for each in after))
                or (name in {"psql", "mysql", "sqlite3"} and not any(_OPTION.match(each) for each in after))
                or (name in _FIRST and any(one == "-f" and two in _INPUT for one, two in pairwise(after)))
                or (_LANGUAGE.match(name) and takes_input and not any(_is_program(each) for each in after))
                or (name == "xargs" and self.wants_name and at != self.names[-1])
            ):
                raise TemplateError(
                    f"{{{{{hole}}}}} is in a script in which {name} runs a text as a program: "
                    "write what it runs into a script of your own, and pass the value as its argument"
                )
            for run in (self.words[at], *(operands[:1] if name in _SHELLS or _LANGUAGE.match(name) else ())):
                if _is_written(run, script):
                    raise TemplateError(
                        f"{{{{{hole}}}}} is in a script that runs a file which it writes, {run}: "
                        "write what it runs into a script of your own, and pass the value as its argument"
                    )
            if _is_assigned(self.words[at], script):
                raise TemplateError(
                    f"{{{{{hole}}}}} is in a script that runs what a variable holds, {self.words[at]}: "
                    "write the command in the text"
                )

    def check_hole(self, hole: str) -> None:
        word = self.word or ""
        is_assignment = _ASSIGNMENT.match(word) is not None
        if self.wants_name and not self.skips and not is_assignment and not word.startswith((">", "<", "-")):
            raise TemplateError(f"{{{{{hole}}}}} would name the command that is run: write the command in the text")
        if (self.wants_name or "export" in self.words) and _CHOOSES_CODE.match(word):
            raise TemplateError(
                f"{{{{{hole}}}}} would choose which program is run, by {word[:-1]}: write it in the text"
            )
        for at in range(len(self.words)) if self.target is None else ():  # No program sees the file of a `>`.
            if self._is_program_of(at, word):
                raise TemplateError(
                    f"{{{{{hole}}}}} would become part of a program that {self.name(at)} runs: "
                    "pass the value as an argument of your own script, or by stdin"
                )

    def _is_program_of(self, at: int, word: str) -> bool:
        """Whether the command whose name is at this place would read a value after `word` as its program."""
        name, after = self.name(at), self.words[at + 1 :]
        operands = [each for each in after if not each.startswith("-")]
        is_shell, is_run = name in _SHELLS, at in self.names
        option = re.compile(_RUN_BY_OPTION.get(name, r"(?!)"))
        if (after and option.fullmatch(after[-1])) or option.match(word):
            return True
        if is_run and (name in _ALWAYS or " " in name or (name == "sqlite3" and operands)):  # `env -S "sh -c"`
            return True
        if is_run and name in _FIRST:
            last = after[-1] if after else ""
            return (not operands and last != "-v") or _PROGRAM.match(last) is not None or word.startswith("--")
        if not is_shell and not _BY_OPTION.match(name):
            return False
        if after and (is_shell or _TAKES_ARGUMENTS.match(name)) and _SCRIPT_FILE.match(after[0]):
            return False  # What follows the file of a script is the script's.
        options = [each for each in (*after, word) if _OPTION.match(each) and ("c" in each or not is_shell)]
        if options:  # Also where it is run elsewhere: docker exec web sh -c ...
            given = after[len(after) - after[::-1].index(options[-1]) :] if options[-1] in after else []
            return not any(not each.startswith("-") for each in given) or not (is_shell or _TAKES_ARGUMENTS.match(name))
        return (
            is_run and (is_shell or _LANGUAGE.match(name) is not None) and len(operands) < (2 if name == "deno" else 1)
        )


def _is_program(option: str) -> bool:
    """Whether an option of a language says what it runs, or that it runs nothing."""
    return _OPTION.match(option) is not None or option in ("-m", "--version", "-V", "--help")


def _is_written(word: str, script: str) -> bool:
    """Whether a script writes the file that it runs under this name."""
    path = re.escape(word.removeprefix("./"))
    return bool(path and re.search(rf"(>|\btee\b[^;|&\n]*\s|\bof=)\s*['\"]?(\./)?{path}(?![\w./-])", script))


def _is_assigned(word: str, script: str) -> bool:
    """Whether a word is a variable that the script assigns: it could hold a value."""
    name = _VARIABLE.match(word)
    if name is None:
        return False
    own = re.escape(name[1])
    return name[1] in "0123456789@*" or bool(
        re.search(rf"(?<![\w$]){own}=|\bfor\s+{own}\b|\bread\b[^;|&\n]*\b{own}\b", script)
    )


def takes_no_options(words: Sequence[str]) -> bool:
    """Whether the word after these words of a command is never an option."""
    name = words[0].rpartition("/")[2]
    return "--" in words[1:] or name in ("test", "[", "[[", "case", "for") or (name == "printf" and len(words) > 1)


def check_option(value: str) -> None:
    """Refuse a value that would be an option of the command that it is an argument of."""
    if value.startswith("-"):
        raise ConfigError(
            f"the value {value[:80]!r} would be an option of the command: write -- before the {{{{…}}}}, or join it to "
            "an option, as in --name={{…}}"
        )


def shell_template(text: str, given: str | None = None) -> SafeTemplate:
    """A script for `sh -c`, whose parameters are the values of its expressions; `given` is one in its input."""
    made: list[str] = []
    expressions: list[str] = []
    guarded: set[int] = set()
    stack: list[str] = []  # open quotes and parentheses
    commands = [_Command()]  # the command that is read, and those around its substitution
    ended: list[_Command] = []
    holes = {hole.start: hole for hole in find_holes(text)}
    at = 0
    while at < len(text):
        mode, command = stack[-1] if stack else "", commands[-1]
        hole = holes.get(at)
        if hole is not None:
            _refuse_in(stack, hole.expression)
            openers = [each for each in stack if each in ("(", "$(")]
            for depth in range(len(commands), 0, -1):
                commands[depth - 1].check_hole(hole.expression)
                if commands[depth - 1].could_be_option():
                    guarded.add(len(expressions))
                if depth == 1 or openers[depth - 2] == "(":  # What a subshell prints is no part of the command around.
                    break
            expressions.append(hole.expression)
            value = f"${{{len(expressions)}}}"
            made.append(value if mode == '"' else f"'\"{value}\"'" if mode == "'" else f'"{value}"')
            command.word = (command.word or "") + "\0"
            at = hole.end
            continue
        step = _shell_step(text, at, mode, stack, commands, ended)
        if any(start in holes for start in range(at + 1, at + step)):
            raise TemplateError("{{…}} follows a $ or a parenthesis, where its value could become a program: move it")
        made.append(text[at : at + step])
        at += step
    beside = expressions[0] if expressions else given
    for each in (*ended, *commands):
        each.end_word()
        if beside is not None:
            each.check_beside(beside, text)
    return SafeTemplate("".join(made), tuple(expressions), frozenset(guarded))


def _refuse_in(stack: list[str], hole: str) -> None:
    where = {
        "`": "backquotes",
        "<<": "a here-document",
        "${": "a ${…} expansion",
        "((": "arithmetic",
        "$'": "a $'…' text",
    }
    for mode in stack:
        if mode in where:
            raise TemplateError(
                f"{{{{{hole}}}}} is inside {where[mode]}, where its value could become a program: move it out"
            )


def _shell_step(
    text: str, at: int, mode: str, stack: list[str], commands: list[_Command], ended: list[_Command]
) -> int:
    """Read one token of a script; returns its length."""
    char, command, pair = text[at], commands[-1], text[at : at + 2]
    if mode in ("'", "$'"):
        if char == "'":
            stack.pop()
        elif mode == "$'" and char == "\\":
            return 2
    elif char == "\\":
        if text.startswith("{{", at + 1):
            raise TemplateError("a backslash before {{…}} has no effect on a value: leave it out")
        command.word = (command.word or "") + text[at + 1 : at + 2]
        return 2
    elif text.startswith("$((", at) or (mode == "((" and char == "("):
        stack.append("((")
        return 3 if char == "$" else 1
    elif mode == "((":
        if char == ")":
            stack.pop()
            return 2 if pair == "))" else 1
    elif pair == "$(" or (mode != '"' and char == "("):
        stack.append("$(" if char == "$" else "(")
        command.target = command.target if char == "$" else None  # >(…) is an argument.
        commands.append(_Command())
        return 2 if char == "$" else 1
    elif pair == "${":
        stack.append("${")
        command.word = (command.word or "") + pair
        return 2
    elif mode == "${":
        command.word = (command.word or "") + char
        if char == "}":
            stack.pop()
    elif char == "`":
        stack.pop() if mode == "`" else stack.append("`")
    elif char == '"':
        stack.pop() if mode == '"' else stack.append('"')
        command.word = command.word or ""
    elif mode == '"':
        command.word = (command.word or "") + char
    elif char == "'":
        stack.append("$'" if text[at - 1 : at] == "$" else "'")
        command.word = command.word or ""
    elif pair == "<<" and text[at : at + 3] != "<<<":
        stack.append("<<")  # Until the end of the text: here-documents may follow each other.
        return 2
    elif char == ")" and mode in ("(", "$("):
        stack.pop()
        ended.append(commands.pop())
        if text[at - 1] == "(":  # The definition of a function, whose body follows.
            commands[-1] = _Command()
        elif mode == "$(":
            commands[-1].word = (commands[-1].word or "") + "\0"  # What it prints.
    elif char == "#" and command.word is None:
        end = text.find("\n", at)
        comment = text[at:] if end < 0 else text[at:end]
        if "{{" in comment:
            raise TemplateError("{{…}} is inside a comment: leave it out")
        return len(comment)
    elif char in ";|&\n":
        command.end_word()
        ended.append(command)
        commands[-1] = _Command()
    elif char.isspace():
        command.end_word()
        command.target = command.target if at < (command.target or 0) else None
    else:
        if mode != "`" and (command.word or "0").isdigit() and (redirect := _REDIRECT.match(text, at)):
            command.target = redirect.end()
        command.word = (command.word or "") + char
    if mode == "'" and char != "'":
        command.word = (command.word or "") + char
    return 1


def sql_template(text: str, *, first: int = 1) -> SafeTemplate:
    """A statement whose parameters, from number `first` on, are the values of its expressions."""
    if alone_in(text) is not None:
        raise TemplateError("the whole query is a value: write the statement in the text, and its values as {{…}}")
    made: list[str] = []
    expressions: list[str] = []
    runs = _RUNS_SQL.search(text)
    if runs is not None and find_holes(text):
        raise TemplateError(f"{runs[1]} runs a text as SQL, of which a value could become a part: leave {{{{…}}}} out")
    for kind, part in _sql_parts(text):
        holes = find_holes(part)
        if not holes:
            made.append(part)
        elif kind == "plain":
            made.append(replace_holes(part, lambda hole: _bound(hole, expressions, first)))
        elif kind == "text":
            pieces = [
                f"'{piece}'" if at % 2 == 0 else _bind(piece, expressions, first)
                for at, piece in enumerate(_split(part[1:-1]))
            ]
            bound = f"({' || '.join(piece for piece in pieces if piece != chr(39) * 2)})"
            typed = _TYPED.search(made[-1])
            if typed is not None:  # interval '{{…}} days' is a cast: only a text may follow the name of a type.
                made[-1], bound = made[-1][: typed.start()], f"{bound}::{typed[1]}"
            made.append(bound)
        else:
            hole = holes[0].expression
            raise TemplateError(f"{{{{{hole}}}}} is inside {kind}, where a value cannot be bound: move it out")
    return SafeTemplate("".join(made), tuple(expressions))


def _split(text: str) -> list[str]:
    """The texts around the holes, and between them their expressions."""
    parts: list[str] = []
    at = 0
    for hole in find_holes(text):
        parts += [text[at : hole.start], hole.expression]
        at = hole.end
    return [*parts, text[at:]]


def _bound(hole: Hole, expressions: list[str], first: int) -> str:
    expressions.append(hole.expression)
    return f"${first + len(expressions) - 1}"


def _bind(expression: str, expressions: list[str], first: int) -> str:
    expressions.append(expression)
    return f"(${first + len(expressions) - 1})::text"


_SQL = re.compile(
    r"""(?P<comment>--[^\n]*|/\*.*?(?:\*/|\Z))"""
    r"""|(?P<dollar>\$(?P<tag>[A-Za-z_]\w*|)\$.*?(?:\$(?P=tag)\$|\Z))"""
    r"""|(?P<special>(?:[eEbBxX]|[uU]&)'(?:[^'\\]|''|\\.)*(?:'|\Z))"""
    r"""|(?P<text>'(?:[^']|'')*(?:'|\Z))"""
    r"""|(?P<name>"(?:[^"]|"")*(?:"|\Z))""",
    re.DOTALL,
)
_TYPED = re.compile(
    r"\b(interval|date|time|timestamp|timestamptz|timestamp with(?:out)? time zone|jsonb?|uuid)\s+\Z", re.IGNORECASE
)
#: Functions that run a text as SQL.
_RUNS_SQL = re.compile(
    r"\b((?:query_to|cursor_to)_xml\w*|ts_stat|ts_rewrite|dblink\w*|crosstab\w*|connectby|xpath_table|cron\.schedule\w*)\s*\(",
    re.IGNORECASE,
)
_SQL_KINDS = {
    "comment": "a comment",
    "dollar": "a $$…$$ text",
    "special": "a text with a prefix",
    "name": "a quoted name",
}


def _sql_parts(text: str) -> Iterator[tuple[str, str]]:
    """The parts of a statement: plain, text, or what holds no parameters."""
    at = 0
    # Quotes inside an expression are not SQL's.
    masked = replace_holes(text, lambda hole: "{{" + "_" * len(hole.expression) + "}}")
    for found in _SQL.finditer(masked):
        yield "plain", text[at : found.start()]
        kind = next(name for name in ("comment", "dollar", "special", "text", "name") if found[name] is not None)
        yield _SQL_KINDS.get(kind, "text"), text[found.start() : found.end()]
        at = found.end()
    yield "plain", text[at:]


def filled_path(text: str, value_of: Callable[[str], str]) -> str:
    """The path of a file; a value in it is part of one name, and leads to no other folder."""

    def part(hole: Hole) -> str:
        value = value_of(hole.expression)
        if "/" in value or "\0" in value or value.startswith("."):
            raise ConfigError(f"the value of {{{{{hole.expression}}}}} leads to another folder: {value[:80]!r}")
        return value

    return replace_holes(text, part)


def _check_words(words: Sequence[str], given: str | None) -> None:
    """Refuse a list of words that is run as it is, where a value could become a program."""
    command = _Command()
    for word in words:
        for hole in find_holes(word):
            command.word = word[: hole.start]
            command.check_hole(hole.expression)
        command.word = word
        command.end_word()
    if given is not None:
        command.check_beside(given)


def check_templates(type: str, data: dict[str, Any]) -> None:
    """Refuse a node whose values could become a program."""
    command, query = data.get("command"), data.get("query")
    if type == "run_command" and command:
        given = next((hole.expression for hole in find_holes(str(data.get("stdin") or ""))), None)
        if isinstance(command, list) or data.get("args") is not None:
            first, args = command if isinstance(command, list) else [command], data.get("args") or []
            if not isinstance(args, list):
                raise TemplateError('args is a list of words, such as ["--name", "{{$.entity.id}}"]', "args")
            _check_words([str(each) for each in (*first, *args)], given)
        else:
            shell_template(str(command), given)
    elif type == "postgres_query":
        for field in ("url", "urlVariable"):
            if find_holes(str(data.get(field) or "")):
                raise TemplateError("a value would choose the database: write its address, or its variable", field)
        if isinstance(query, str):
            sql_template(query)
