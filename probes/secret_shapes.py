"""How the tokens of well-known services begin, and what bodies of private keys look like.

Each service gives its tokens a beginning of its own, so that scanners of repositories know them. Where such a beginning
also begins ordinary names (`hf_`, `sk-`, `as-`), a digit is asked for, or great length.
"""

from __future__ import annotations

import re

_DIGIT = r"(?=[A-Za-z_\-]{0,40}\d)"  # within the letters that follow: names of ours have none

# Service -> the patterns of its tokens.
SHAPES: dict[str, tuple[str, ...]] = {
    "Hugging Face": (r"hf_(?=[A-Za-z]{0,40}\d)[A-Za-z0-9]{8,}+", r"hf_[A-Za-z0-9]{30,}+", r"api_org_[A-Za-z0-9]{20,}+"),
    "OpenAI, Anthropic and others": (rf"sk-{_DIGIT}[\w\-]{{8,}}+", r"sk-[\w\-]{30,}+"),
    "Stripe": (r"[srp]k_(?:live|test)_[A-Za-z0-9]{8,}+", r"whsec_[A-Za-z0-9+/=]{16,}+"),
    "GitHub": (r"gh[pousr]_[A-Za-z0-9]{8,}+", r"github_pat_\w{8,}+"),
    "GitLab": (r"gl(?:pat|dt|rt|cbt|ptt|ft|imt|soat|agent|oas)-[\w\-.]{8,}+", r"GR1348941[\w\-]{20,}+"),
    "NVIDIA": (r"nvapi-[\w\-]{8,}+",),
    "AWS": (r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{12,}+", r"ABSK(?=[A-Za-z]{0,40}\d)[A-Za-z0-9+/]{20,}+={0,2}"),
    "Slack": (r"xox[a-z]-[A-Za-z0-9\-]{8,}+", r"xapp-[A-Za-z0-9\-]{8,}+"),
    "Google": (r"AIza[\w\-]{20,}+", r"ya29\.[\w\-]{10,}+", r"GOCSPX-[\w\-]{10,}+", r"1//0[\w\-]{10,}+"),
    "JSON web tokens": (r"eyJ[\w\-]{8,}+(?:\.[\w\-]++){0,4}",),
    "npm, PyPI, Rubygems": (r"npm_[A-Za-z0-9]{20,}+", r"pypi-[\w\-]{16,}+", r"rubygems_[0-9a-f]{32,}+"),
    "Docker": (r"dckr_(?:pat|oat)_[\w\-]{8,}+",),
    "DigitalOcean": (r"do[ort]_v1_[0-9a-f]{16,}+", r"dop_v1_[0-9a-f]{16,}+"),
    "SendGrid": (r"SG\.[\w\-]{10,}+\.[\w\-]{10,}+",),
    "inference": (
        r"(?:r8|gsk)_[A-Za-z0-9]{20,}+", r"(?:xai|pplx)-[A-Za-z0-9]{20,}+", r"tgp_v\d_[\w\-]{16,}+",
        rf"(?:tvly-|csk-|jina_|fw_){_DIGIT}[\w\-]{{16,}}+", r"e2b_[0-9a-f]{32,}+", r"rpa_[A-Za-z0-9]{16,}+",
        r"a[ks]-(?=[A-Za-z]{0,40}\d)[A-Za-z0-9]{20,}+", r"KGAT_[0-9a-f]{24,}+",
    ),
    "experiments": (r"wandb_v\d_\w{16,}+", r"lsv2_[a-z]{2}_\w{16,}+", r"dapi[0-9a-f]{32}"),
    "secrets": (
        r"hv[sbr]\.[\w\-]{16,}+", r"dp\.(?:pt|st|ct|sa|scim|audit)\.[\w\-.]{16,}+", r"ops_eyJ[\w\-]{16,}+",
        r"AGE-SECRET-KEY-1[A-Z0-9]{20,}+", r"tskey-[\w\-]{16,}+",
    ),
    "Atlassian": (r"AT(?:ATT|CTT|BB)[\w\-=]{20,}+",),
    "Shopify, Square, Telegram": (
        r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{16,}+", r"sq0[a-z]{3}-[\w\-]{22,}+", r"\d{8,10}:[\w\-]{35}(?![\w\-])",
    ),
    "Artifactory": (r"AKC(?=[A-Za-z]{0,40}\d)[A-Za-z0-9]{20,}+",),
    "Discord": (r"[MNO][\w\-]{23,25}\.[\w\-]{6}\.[\w\-]{27,38}(?![\w\-.])",),
    "Mailchimp, Mailgun, Twilio": (
        r"[0-9a-f]{32}-us\d{1,2}(?!\w)", r"key-[0-9a-f]{32}(?!\w)", r"(?:AC|SK)[0-9a-f]{32}(?!\w)",
    ),
    "Notion, Linear, Figma, Postman, Airtable": (
        r"secret_[A-Za-z0-9]{40,}+", rf"(?:lin_api_|figd_|ntn_){_DIGIT}[\w\-]{{16,}}+",
        r"PMAK-[0-9a-f]{20,}+-[\w\-]{8,}+",
        r"pat[A-Za-z0-9]{14}\.[0-9a-f]{64}",
    ),
    "clouds": (
        r"LTAI(?=[A-Za-z]{0,40}\d)[A-Za-z0-9]{12,}+", r"(?:AKID|AKLT)(?=[A-Za-z]{0,40}\d)[A-Za-z0-9]{20,}+",
        r"fm[12]_[\w+/=\-]{20,}+", r"v1\.0-[0-9a-f]{20,}+-[\w\-]{16,}+", r"pul-[0-9a-f]{40}", r"sbp_[0-9a-f]{40}",
        r"[A-Za-z0-9]{14}\.atlasv1\.[\w\-]{40,}+", r"pscale_(?:tkn|pw|oauth)_[\w\-.]{16,}+",
        r"[\w~.\-]{3}\dQ~[\w~.\-]{31,34}(?![\w~.\-])", rf"vercel_{_DIGIT}[\w\-]{{16,}}+",
    ),
    "monitoring": (
        rf"(?:glsa_|glc_|sntrys_|sntryu_){_DIGIT}[\w\-+/=]{{16,}}+", r"NR(?:AK|JS|AL|II)-[A-Za-z0-9]{20,}+",
        r"dt0[a-z]\d\d\.[A-Z0-9]{20,}+\.[A-Z0-9]{40,}+", r"sgp_[0-9a-f_]{40,}+",
    ),
    "crypted passwords": (r"\$(?:[1567y]|apr1|2[abxy]|argon2(?:id|[id]))\$[\w./$,=+\-]{20,}+",),
    "private keys, encoded again": (r"LS0tLS1CRUdJTi(?!BDRVJU)[A-Za-z0-9+/]{20,}+={0,2}",),  # not certificates
}  # fmt: skip

# A private key without its header: PKCS 1 and 8 (DER in base64; MC4CAQAw: Ed25519 and X25519), SEC 1 of elliptic
# curves, OpenSSH; not within a longer run of base64. And the lines that PuTTY calls private.
_BODY = r"(?:MI[IG]|MC4CAQAw|MHcCAQEE|MHQCAQEE|MIHcAgEB|b3BlbnNzaC1rZXktdjE)"
KEY_BODY = re.compile(
    rf"(?<![A-Za-z0-9+])(?<![A-Za-z0-9+/]{{24}}){_BODY}[A-Za-z0-9+/]{{45,}}+={{0,2}}(?:(?:\r?\n|\\n)[A-Za-z0-9+/]{{1,80}}+={{0,2}}(?![\w+/=]))*+"
)
PUTTY_LINES = re.compile(r"(?<=Private-Lines: )(\d{1,3}+)((?:(?:\r?\n|\\n)[A-Za-z0-9+/=]{1,80}+(?![\w+/=:\-]))++)")

SHORTEST = 11  # characters of a token, of the patterns above
_ANY = "|".join(pattern for patterns in SHAPES.values() for pattern in patterns)
_LONG = rf"(?=[\w\-./:+=~$]{{{SHORTEST}}})"  # most words of a text are shorter, and fail here at once
SHAPED = re.compile(rf"(?<![\w\-]){_LONG}(?:{_ANY})")
# In a name of a file parts are joined by - and _, so that a token may follow either.
SHAPED_IN_FILE_NAME = re.compile(rf"(?<![A-Za-z0-9]){_LONG}(?:{_ANY})")

# The same behind letters and _, as in `keyhf_...`: only what no ordinary name has. By the lower-case form of how each
# begins.
_MIXED = r"(?=[^A-Z\s]{0,60}+[A-Z])(?=[^a-z\s]{0,60}+[a-z])(?=[^\d\s]{0,60}+\d)"  # capitals, small letters and digits
GLUED: dict[str, str] = {
    "hf_": rf"hf_{_MIXED}[A-Za-z0-9]{{16,}}+",  # not rlhf_run20261128
    **{f"gh{letter}_": rf"gh{letter}_{_MIXED}[A-Za-z0-9]{{20,}}+" for letter in "pousr"},
    "github_pat_": rf"github_pat_{_MIXED}\w{{20,}}+",
    "glpat-": rf"glpat-{_MIXED}[\w\-]{{16,}}+",
    "nvapi-": rf"nvapi-{_MIXED}[\w\-]{{20,}}+",
    "sk-": rf"sk-(?:proj|ant|or|svcacct)-{_MIXED}[\w\-]{{16,}}+",
    "akia": r"AKIA(?=[A-Z]{0,15}\d)[A-Z0-9]{16}(?![A-Za-z0-9])",
    "asia": r"ASIA(?=[A-Z]{0,15}\d)[A-Z0-9]{16}(?![A-Za-z0-9])",
    "aiza": rf"AIza{_MIXED}[\w\-]{{30,}}+",
    "xox": rf"xox[a-z]-{_MIXED}[A-Za-z0-9\-]{{20,}}+",
    "npm_": rf"npm_{_MIXED}[A-Za-z0-9]{{30,}}+",
    "eyj": r"eyJ[\w\-]{16,400}+\.eyJ[\w\-]{4,400}+(?:\.[\w\-]++)?+",
}
SHAPED_GLUED = re.compile("|".join(GLUED.values()))
