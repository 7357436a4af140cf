"""Eight personas and the words they use: what the synthetic tasks are written with.

Data only. The personas are ClawGym's; the words are ours, chosen so that no word is a part of
another one (a task that replaces or searches a word must not hit a second one by accident).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Persona:
    """One persona: file stems, folder names, content words, setting keys and its intent."""

    name: str
    intent: str
    stems: tuple[str, ...]
    folders: tuple[str, ...]
    words: tuple[str, ...]
    keys: tuple[str, ...]


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PERSONAS = (
    Persona(
        "data-science-researcher",
        "keep the samples and results of a study in order",
        _split("samples results cohort survey metrics trials signals outliers clusters features"),
        _split("raw clean export figures study"),
        _split("mean median control placebo baseline north south cotton maple river zinc copper"),
        _split("alpha folds bins cutoff dataset target"),
    ),
    Persona(
        "academic-author",
        "get a manuscript and its sources ready for submission",
        _split("abstract chapter intro review citations appendix thesis outline remarks sources"),
        _split("drafts paper refs submit proofs"),
        _split("theory method claim proof lemma journal editor reader history argument figure"),
        _split("title venue pages style edition status"),
    ),
    Persona(
        "ml-engineer",
        "prepare the next training run and keep track of the last",
        _split("train epochs losses weights labels batches sweep runs layers tokens"),
        _split("models ckpt logs eval shards"),
        _split("dropout attention encoder gradient tensor kernel softmax warmup cosine embedding"),
        _split("lr seed rank depth batch optimizer"),
    ),
    Persona(
        "backend-developer",
        "tidy the settings and logs of a web service",
        _split("server routes users orders queue session requests schema handlers cache"),
        _split("api config db services tmp"),
        _split("login token timeout retry gateway socket payload header client worker invoice"),
        _split("port host workers limit mode region"),
    ),
    Persona(
        "technical-writer",
        "bring the product's documentation up to date",
        _split("guide manual glossary faq changelog tutorial install reference topics notes"),
        _split("docs pages images release archive"),
        _split("button screen menu window printer cable setup warning example account toolbar"),
        _split("author lang format theme audience product"),
    ),
    Persona(
        "devops-engineer",
        "leave a host and its deployment in a known state",
        _split("deploy hosts backup alerts services cron nodes audit inventory rollout"),
        _split("ops infra scripts nightly prod"),
        _split("cluster docker proxy firewall volume replica failover standby primary disk"),
        _split("image zone replicas memory timeout env"),
    ),
    Persona(
        "embedded-firmware-dev",
        "prepare a firmware build and its board settings",
        _split("board pins sensors timers firmware uart registers boot power adc"),
        _split("src hal build drivers flash"),
        _split("motor relay voltage crystal battery antenna pulse buffer interrupt servo"),
        _split("clock baud volts device channel revision"),
    ),
    Persona(
        "indie-game-dev",
        "sort out the assets and the balance of a small game",
        _split("levels scores items quests enemies sprites sounds player dialog maps"),
        _split("assets scenes saves audio mods"),
        _split("dragon castle sword forest wizard potion shield goblin treasure dungeon bridge"),
        _split("lives speed width volume difficulty hero"),
    ),
)

GENERIC_STEMS = _split(
    "list data summary report todo draft record table index entry plan memo items page log"
)
PLAIN_WORDS = _split(
    "apple banana cherry orange lemon grape peach plum silver golden purple yellow winter summer "
    "monday friday window garden pencil kitchen morning evening rocket planet meadow harbor violin "
    "tiger rabbit falcon salmon turtle walnut ginger pepper velvet marble canyon island"
)
GENERIC_KEYS = _split("level color owner count")
EXTENSIONS = _split("txt md log csv cfg dat")
