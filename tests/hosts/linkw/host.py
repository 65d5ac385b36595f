"""What all checks share: the worker to start, the model, its tokenizer, and prompts."""

import json
import random

from expect import Failed
from process import run
from session import Session
from tokenizer import Tokenizer

# Random prompts come from this and the key that each check names.
SEED = "ictus link w"


class Host:
    def __init__(self, worker, model, library):
        self.worker = worker
        self.model = model
        self.library = library
        status, printed, said = self.command("check", "--model", model)
        if status != 0:
            raise Failed(f"check of {model}: exit {status}, {said}")
        self.report = json.loads(printed)
        self.tokenizer = Tokenizer(library, model)
        self.vocab = self.tokenizer.vocab_size()

    def command(self, *words):
        """Exit code, standard output and standard error of the worker with these words."""
        return run([self.worker, *words])

    def session(self, **how):
        return Session(self, **how)

    def prompt(self, key, length):
        """`length` ids that only the key decides; special tokens may be among them."""
        source = random.Random(f"{SEED} {key}")
        return [source.randrange(self.vocab) for _ in range(length)]
