"""What a check says, and how the checks are found."""

CHECKS = []
NOTES = []


class Failed(Exception):
    """A fact that does not hold."""


def check(rules):
    """Makes a function of the context a check. `rules` names what it holds, by the ids of the specification."""

    def register(function):
        CHECKS.append((function.__name__, rules, function))
        return function

    return register


def expect(held, said):
    if not held:
        raise Failed(said() if callable(said) else said)


def equal(found, wanted, what):
    if found != wanted:
        raise Failed(f"{what}: {shorten(found)} instead of {shorten(wanted)}")


def note(text):
    """Something a reader of the output should know, such as what the model at hand does not offer."""
    NOTES.append(text)


def shorten(value):
    text = repr(value)
    return text if len(text) <= 600 else text[:600] + "…"
