"""The argument skip_layers: regular expressions that exclude layers, and their globs for the library."""
import re

from . import _abi
from ._core import make_error, log, short_repr


def compile_skip_patterns(given):
    """Compile the argument skip_layers: a regular expression or a list of expressions."""
    try:
        texts = [given] if isinstance(given, str) else list(given or [])
    except TypeError:
        raise make_error(_abi.NG_ERR_ARG, f"skip_layers is {short_repr(given)}, expected regular expressions") from None
    try:
        return [re.compile(text) for text in texts if text != ""]
    except (re.error, TypeError) as error:
        raise make_error(_abi.NG_ERR_ARG, f"skip_layers: {error} in {texts}") from None


def _escape_glob(name):
    """Return a glob that matches only this name."""
    return "".join("\\" + letter if letter in "*?[]\\,^$|() \t\n\r" else letter for letter in name)


def make_skip_globs(patterns, entries):
    """Return the entries whose name or class (also in lower case) contains one of `patterns`, as globs for an option.
    If the text is too long, numbers become '*', except where the glob would also match an entry that is not skipped."""
    names, used = {}, set()
    for entry in entries:
        texts = [entry.name]
        for module in getattr(entry, "modules", [module for _, module, _, _ in entry.places]):
            texts += [type(module).__name__, type(module).__name__.lower()]
        hits = {pattern for pattern in patterns if any(pattern.search(text) for text in texts)}
        entry.is_excluded_by_choice |= bool(hits)
        names[entry.name] = bool(hits)
        used |= hits
    for pattern in patterns:
        if pattern not in used:
            log.warning("skip_layers: '%s' matches no layer", pattern.pattern)
    exact = ",".join(_escape_glob(name) for name, hit in names.items() if hit)
    if len(exact.encode()) < 4096:
        return exact
    kept, globs = [name for name, hit in names.items() if not hit], {}
    for name in (name for name, hit in names.items() if hit):
        wide = re.compile(re.sub(r"\d+", ".*", re.escape(name)), re.DOTALL)
        alone = not any(wide.fullmatch(other) for other in kept)
        globs[re.sub(r"\d+", "*", _escape_glob(name)) if alone else _escape_glob(name)] = None
    return ",".join(globs)
