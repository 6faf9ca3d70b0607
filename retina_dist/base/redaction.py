"""Passwords, tokens and keys out of whatever is written or shown.

Settings are used as they are; `redacted` is for their copies in files, in words, in errors and in
MLflow.
"""

import re
from typing import Any

MASK = "***"

# What an authority has before its host: "user:password@", or a token alone. A password may hold
# "@", or "/" and quotes where they were not encoded; "HOST:PORT/a@b" has none.
_USER = re.compile(
    r"""(?x) (?<=://)
    (?: [^\s/@:"<>]{0,99} : (?!\d{1,5}(?:[/?#"',;)\]}]|$))
        (?:[^\s@"<>] | ["<>](?![,:}\]]) ){0,999} @
      | [^\s/@?#"<>]{0,999} @ )
    (?: [^\s/@"<>]{0,999} @ )*"""
)
# abfs://CONTAINER@ACCOUNT… and the like name a container there.
_CONTAINER = re.compile(r"(?:abfss?|wasbs?)://[^\s/@:]*@", re.IGNORECASE)
# All values of a URL's query and fragment: SAS and presigned URLs, ?token=, #access_token=.
_QUERY = re.compile(r"(?<=://)([^\s?#\"<>]{0,2000})([?#][^\s\"<>]*)")
_PARAMETER = re.compile(r"(?<=[=])[^&?#]+|(?<=[?#&])[^&?#=]{24,}(?=$|[&?#])")

# The words with which a secret's name ends; a number may follow, as in HF_TOKEN_2.
_WORD = r"""(?:
    (?: access | account | admin | api | app | application | auth | aws | client | consumer
      | database | db | deploy | encryption | hf | license | master | openai | priv | private
      | sas | secret | security | service | session
      | shared | signing | ssh | storage | subscription | wandb ) [_\-. ]? key (?: [_\-. ]? id )? s?
    | pass (?: word | wd | phrase | code ) s? | credentials? | secrets?
    | shared_?access_?signature | session_?id
    | (?<! cls_ ) (?<! class_ ) (?<! pad_ ) (?<! eos_ ) (?<! bos_ ) (?<! unk_ )
      (?<! sep_ ) (?<! mask_ ) (?<! num_ )
      (?<! max_ ) (?<! min_ ) (?<! per_ ) token
    | (?<! [a-z] ) (?: auth | jwt | pwd (?! = ["']? / ) | sas | sig | signature )
    | (?<! [a-z] ) (?<! forward_ ) (?<! backward_ ) (?<! first_ ) (?<! second_ )
      (?<! single_ ) (?<! num_ ) pass
    | (?: access | api | auth | refresh ) _? tokens
    ) (?: _? \d{1,3} )?"""
# The value ends with its quote or bracket, or at a space; a quote inside a word belongs to it.
_VALUE = r"""(?:
    \\+" (?: (?! \\+" ) . )* (?: \\+" )? | \\+' (?: (?! \\+' ) . )* (?: \\+' )?
    | " (?: [^"\\\n] | \\. )* "? | ' (?: [^'\\\n] | \\. )* '?
    | \[ [^\]\n]* \]? | \{ [^}\n]* \}?
    | (?: [^\s"';] | ["'] (?= [\w.+/=-] ) )+ )"""
_OPENING = re.compile(r"\\*[\"']|[\[{]")
_EQUALS = r"(?: \s* [:=]? = >? \s* | :\s+ | (?<= [\"'] ) \s* :\s* | (?<! : ) : (?! [/\\\s] ) )"
# Not masked: whether there is a secret, and from which variable it is read.
_PLAIN = r"(?! [\"']? (?: (?: true | false | none | null ) \b | \$ \{ [\w.:]+ (?: ,null )? \} ) )"

# NAME=VALUE and NAME: VALUE of connection strings, environment variables, options, headers and
# JSON.
_NAMED = re.compile(
    rf"""(?ix) (?P<name> {_WORD} (?: \\* ["'] )? \]? ) (?P<equals> {_EQUALS} )
    {_PLAIN} (?P<value> {_VALUE} )"""
)
# --token VALUE, and <password>VALUE</password>.
_OPTION = re.compile(
    rf"""(?ix) (?P<name> (?<! [\w-] ) -- [\w.-]*? {_WORD} ) (?P<equals> \s+ )
    (?! - ) (?P<value> {_VALUE} )"""
)
_ELEMENT = re.compile(rf"(?ix) (?P<name> < [\w.:-]*? {_WORD} ) (?P<equals> > ) (?P<value> [^<]+ )")
# Hydra's env_set gives a job its environment: KEY: VALUE of YAML's lines, {KEY: VALUE},
# env_set.KEY=VALUE.
_ENVIRONMENT_LINES = re.compile(
    r"(?m)^([ \t]*)env_set:[ \t]*\n((?:\1[ \t]+\S.*(?:\n|\Z)|[ \t]*\n)+)"
)
_ENVIRONMENT_LINE = re.compile(r"(?m)^([ \t]+[^\s:]+:)[ \t]*\S.*$")
_ENVIRONMENT = re.compile(
    rf"""(?ix) (?P<name> \b env_set (?: \\* ["'] | \.[\w.-]+ )* ) (?P<equals> \s* [=:] \s* )
    (?P<value> (?! [\n] ) {_VALUE} )"""
)
# The rest of a header's line, whatever its scheme; the first words of other schemes.
_HEADER = re.compile(
    r"(?i)((?<![a-z])(?:proxy-)?authorization|(?<![a-z])(?:set-)?cookie)"
    r"([\"']?\s*[:=]\s*[\"']?)(?!\*{3})[^\s\"'][^\n\"']*"
)
_SCHEME = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}")
# Secrets that are known by how they begin, wherever they stand.
_BARE = re.compile(
    r"""(?x) (?<! [A-Za-z0-9] ) (?:
    hf_ [A-Za-z0-9]{20,} | api_org_ [A-Za-z0-9]{20,}                        # Hugging Face
    | gh[opsur]_ \w{20,} | github_pat_ \w{20,} | gl[a-z]{2,6}- [\w-]{20,}   # GitHub, GitLab
    | (?: AKIA | ASIA | ABIA | ACCA ) [A-Z0-9]{12,}                         # Amazon
    | AIza [\w-]{30,} | ya29\. [\w-]{20,} | GOCSPX- [\w-]{20,}              # Google
    | sk- [\w-]{20,} | gsk_ \w{20,} | nvapi- [\w-]{20,} | r8_ \w{20,}       # OpenAI and others
    | xox[a-z]- [\w-]{10,} | xapp- [\w-]{10,}                               # Slack
    | [rsw]h?[ks](?:ec)?_ (?: live | test )_ \w{10,} | whsec_ [\w+/=]{20,}  # Stripe
    | npm_ [A-Za-z0-9]{30,} | pypi-AgE [\w-]{20,} | dckr_pat_ [\w-]{20,}    # registries of packages
    | dapi [0-9a-f]{32} | wandb_v1_ \w{20,} | glsa_ \w{20,} | dop_v1_ \w{20,} | hv[sb]\. [\w-]{20,}
    | SG\. [\w-]{16,} \. [\w-]{16,} | shp[a-z]{2}_ \w{20,} | ATATT [\w=-]{20,}
    | tskey-[a-z]+- [\w-]{10,}
    | eyJ [\w=-]{10,} \. [\w=-]{10,} (?: \. [\w.+/=-]* )?                    # a JSON web token
    )"""
)
_PEM = re.compile(
    r"(-----BEGIN [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----).*?(-----END [A-Z0-9 ]*-----|\Z)", re.DOTALL
)
_WEBHOOK = re.compile(
    r"(?<=//)(hooks\.slack\.com/\w+|[\w.-]*discord(?:app)?\.com/api/webhooks)/[\w/-]+"
)


def redacted(text: str) -> str:
    """`text` without what gives access.

    These are users and passwords of URLs, all values of their queries, values whose name ends in a
    secret's word, the values of Hydra's `env_set`, and secrets that are known by how they begin.

    >>> redacted("https://me:pass@example.org/mlflow, az://box/run?sv=2024&sig=abc%3D")
    'https://example.org/mlflow, az://box/run?sv=***&sig=***'
    >>> redacted("AccountName=mine;AccountKey=abc==;EndpointSuffix=core.windows.net")
    'AccountName=mine;AccountKey=***;EndpointSuffix=core.windows.net'
    """
    if "://" in text:
        containers = _CONTAINER.findall(text)
        text = _CONTAINER.sub("\0", text)
        text = _USER.sub("", text)
        for container in containers:
            text = text.replace("\0", container, 1)
        text = _QUERY.sub(_without_values, text)
        text = _WEBHOOK.sub(rf"\1/{MASK}", text)

    if "env_set" in text:
        text = _ENVIRONMENT_LINES.sub(_mask_lines, text)
        text = _ENVIRONMENT.sub(_mask_value, text)
    text = _HEADER.sub(rf"\1\2{MASK}", text)
    for pattern in (_NAMED, _OPTION, _ELEMENT):
        text = pattern.sub(_mask_value, text)
    text = _SCHEME.sub(rf"\1 {MASK}", text)
    text = _BARE.sub(MASK, text)
    return _PEM.sub(rf"\1{MASK}\2", text) if "PRIVATE KEY" in text else text


def redacted_word(word: str) -> str:
    """The same of one word of a command line, where all behind a secret's = belongs to it."""
    name, equals, _ = word.partition("=")
    masked = redacted(word)
    if masked != word and equals and not re.search(r"[\s:]", name) and _is_secret(name):
        return f"{name}={MASK}"
    return masked


def redacted_tree(value: object, is_secret: bool = False) -> Any:
    """The same of all text in dictionaries, lists and tuples, and of what a key names a secret.

    Of what `is_secret` each text and number is masked; true, false and None tell nothing.
    """
    if isinstance(value, dict):
        return {
            key: redacted_tree(inner, is_secret or _is_secret(key)) for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return type(value)(redacted_tree(inner, is_secret) for inner in value)
    if not is_secret:
        return redacted_word(value) if isinstance(value, str) else value
    return value if value is None or isinstance(value, bool) or value == "" else MASK


def _is_secret(key: object) -> bool:
    """Whether all that a dictionary has by this key is secret."""
    name = str(key)
    return name == "env_set" or redacted(f"{name}=0") != f"{name}=0"


def _without_values(match: re.Match[str]) -> str:
    values = match[2].rstrip("])}',;:.")  # without what belongs to the sentence around a URL
    return match[1] + _PARAMETER.sub(MASK, values) + match[2][len(values) :]


def _mask_lines(match: re.Match[str]) -> str:
    return f"{match[1]}env_set:\n" + _ENVIRONMENT_LINE.sub(rf"\1 {MASK}", match[2])


def _mask_value(match: re.Match[str]) -> str:
    """NAME=*** with what was around the value, so that JSON and lines of a shell stay readable."""
    opening = _OPENING.match(match["value"])
    around = opening[0] if opening else ""
    closing = {"[": "]", "{": "}"}.get(around, around)
    return f"{match['name']}{match['equals']}{around}{MASK}{closing}"
