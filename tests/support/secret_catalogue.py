"""Secrets to plant, each of another kind and with a value of its own, and texts that only look like some.

Values are put together when they are needed: a scanner of repositories would take them for real.
"""

from __future__ import annotations

import json
from dataclasses import dataclass


def _mark(number: int) -> str:
    return f"s3cr3T{number:02d}vAlu3"


@dataclass(frozen=True)
class Planted:
    """`text`: how it appears in a sentence, an argument or a file. `value`: what must not be found anywhere."""

    kind: str
    value: str
    text: str


def _planted() -> list[Planted]:
    found: list[Planted] = []

    def plant(kind: str, text: str, value: str = "{}") -> None:
        own = value.replace("{}", _mark(len(found)))
        found.append(Planted(kind, own, text.replace("{}", own)))

    # by name
    plant("environment assignment", "HF_TOKEN={} python train.py")
    plant("option with =", "--api-key={}")
    plant("option with a space", "--hf_token {}")
    plant("OpenRLHF's wandb option", "--use_wandb {}")
    plant("hydra override", "trainer.wandb_key={}")
    plant("added hydra override", "+trainer.logger.api_key='{}'")
    plant("JSON", json.dumps({"model": {"hub": {"db_password": "{}"}}}))
    plant("JSON in JSON", json.dumps({"env": json.dumps({"client_secret": "{}"})}))
    plant("YAML", "trainer:\n  hub_token: {}\n  lr: 1e-5\n")
    plant("TOML", '[hub]\naccess_token = "{}"\n')
    plant("Python call", "login(token='{}')")
    plant("Python dictionary", "{'api_key': '{}'}")
    plant("list of words", "['serve', '--api-key', '{}']")
    plant("quoted with spaces", 'password: "{}"', "two words {}")
    plant("header", "Authorization: Bearer {}")
    plant("basic header", "-H 'Authorization: Basic {}='")
    plant("header of an API", "X-Api-Key: {}")
    plant("cookie", "Cookie: theme=dark; session={}; more=1")
    plant("azure", "DefaultEndpointsProtocol=https;AccountName=x;AccountKey={}==;EndpointSuffix=core")
    plant("camel case", "accessToken={}")
    plant("netrc", "machine api.example login user password {}")
    plant("variables of a Ray job", 'RAY_JOB_CONFIG_JSON_ENV_VAR={"a":{"b":1},"env_vars":{"X":"{}"}}')
    plant("several values", "--api_keys=[first,{}]")
    plant("key of a service", "trainer.wandb.key={}")
    plant("Python environment", "os.environ['HF_TOKEN']='{}'")
    plant("Python setdefault", "os.environ.setdefault('WANDB_API_KEY', '{}')")
    plant("Kubernetes", json.dumps({"env": [{"name": "HF_TOKEN", "value": "{}"}]}))
    plant("Kubernetes, YAML", "- name: HF_TOKEN\n  value: {}\n")
    plant("Python login", "wandb.login(key='{}')")
    plant("Python login, by position", 'huggingface_hub.login("{}")')
    plant("pair of requests", "requests.get(u, auth=('me','{}'))")
    plant("list with commas", "--api_key=first,{}")
    plant("prose", "the API key: {} was refused")
    plant("Kaggle's file", json.dumps({"username": "me", "key": "{}"}))
    plant("Kaggle's file, turned round", json.dumps({"key": "{}", "username": "me"}))
    plant("option of a key", "serve --key {}")
    plant("variables in columns", "HF_TOKEN\t{}")
    plant("variables in columns of blanks", "HF_TOKEN   {}")
    plant("arrow", "hf_token -> {}")
    plant("arrow without blanks", "hf_token->{}")
    plant("Kubernetes configuration", "KUBECONFIG_DATA={}")
    plant("netrc in lines", "machine api.example\n  login user\n  password {}")
    plant("lower-case variables in columns", "aws_secret_access_key   {}")
    plant("YAML with a tag", "apiKey: !!str {}")
    plant("default of a variable", "os.environ.get('HF_TOKEN', '{}')")
    plant("default of a lower-case variable", "os.getenv('openai_api_key', '{}')")
    plant("password in a message", "AuthError: password '{}' was refused")
    plant("password in a sentence", "the password is {}")
    plant("session", "GET /jobs?sessionid={}")
    # in URLs
    plant("code of a login", "https://host/callback?state=ok&code={}")
    plant("percent-encoded", "next=%2Fv1%3Ftoken%3D{}%26a%3D1")
    plant("percent-encoded, alone", "token%3D{}")
    plant("percent-encoded JSON", "body=%7B%22client_secret%22%3A%22{}%22%2C%22n%22%3A1%7D")
    plant("JSON in HTML", "<pre>{&quot;password&quot;: &quot;{}&quot;}</pre>")
    plant("YAML, a tag before a block", "vars:\n  apiKey: !vault |\n    {}\n  lr: 1\n")
    plant("YAML, a type before a block", "password: !!str |\n  {}\n")
    plant("table without blanks", "HF_TOKEN|{}")
    plant("sentence in the past", "the password was set to {}")
    plant("prompt for a passphrase", "Enter passphrase for key: {}")
    plant("URL within a URL", "https://a/?to=https%3A%2F%2Fb%2F%3Faccess_token%3D{}%26x%3D1")
    plant("URL within a URL, twice encoded", "https://a/?to=https%253A%252F%252Fb%253Fsig%253D{}")
    plant("URL within a URL, plain", "https://a/?to=https://b/?access_token={}")
    plant("login of a URL within a URL", "https://a/?to=https%3A%2F%2Fme%3A{}%40b%2F")
    plant("login of a URL", "https://me:{}@host.example/path")
    plant("login with @", "https://me:{}@host.example/path", "p@{}")
    plant("token as a login", "https://{}@git.example/repo.git")
    plant("database", "postgresql://u:{}@db:5432/mlflow")
    plant("redis without a user", "redis://:{}@head:6379/0")
    plant("login without a scheme", "me:{}@host")
    plant("token parameter", "https://host/v1?a=1&access_token={}&b=2")
    plant("key parameter", "https://host/v1?key={}")
    plant("signature of AWS", "https://b.s3.amazonaws.com/x?X-Amz-Date=2&X-Amz-Signature={}&x=1")
    plant("signature of Azure", "https://a.blob.example/c?sv=2024&sig={}&se=1")
    plant("Slack webhook", "https://hooks.slack.com/services/T0/B0/{}")
    plant("Discord webhook", "https://discord.com/api/webhooks/123/{}")
    plant("Feishu webhook", "https://open.feishu.cn/open-apis/bot/v2/hook/{}")
    plant("Teams webhook", "https://x.webhook.office.com/webhookb2/{}/IncomingWebhook/a/b")
    # by program
    plant("curl, options together", "curl -su me:{} http://host/")
    plant("curl, joined", "curl -ume:{} http://host/")
    plant("docker", "docker login -u me -p {} registry")
    plant("az login", "az login --service-principal -u me -p {} --tenant x")
    plant("mysql", "mysql -uroot -p{} db")
    plant("redis-cli", "redis-cli -h head -a {} ping")
    plant("curl", "curl -s -u me:{} http://host/")
    plant("curl, long", "curl --user=me:{} http://host/")
    plant("wandb login", "wandb login --relogin {}")
    plant("vault login", "vault login -no-print {}")
    plant("smbclient", "smbclient //host/share -U me%{}")
    plant("smbclient, joined", "smbclient -Ume%{} //host/share")
    plant("sshpass", "sshpass -p {} ssh host")
    # by shape
    plant("Hugging Face", "downloading with hf_{}", "{}")
    plant("OpenAI", "Incorrect API key provided: sk-{}.", "proj-{}")
    plant("Stripe", "sk_live_{}")
    plant("GitLab", "remote says glpat-{}", "{}")
    plant("GitHub", "remote says ghp_{}")
    plant("GitHub, fine-grained", "github_pat_{}")
    plant("NVIDIA", "key nvapi-{} refused")
    plant("AWS", "credentials AKIA{}", "IOSFODNN7EXAMPLE")
    plant("AWS, temporary", "ASIA{}", "JOSFODNN7EXAMPLE")
    plant("Slack", "xoxb-{}", "1234-{}")
    plant("Google", "AIza{}", "SyD-1234567890{}")
    plant("JSON web token", "jot eyJ{}", "hbGciOi{}.eyJzdWIi.c2lnbmF0")
    plant("Tavily", "tvly-dev-{}", "abcdefghij{}")
    plant("Jina", "jina_{}", "abcdefghij{}")
    plant("Fireworks", "fw_{}", "abcdefghij{}")
    plant("Cerebras", "csk-{}", "abcdefghij{}")
    plant("Grafana", "glsa_{}", "abcdefghij{}")
    plant("npm", "npm_{}", "abcdefghij{}")
    plant("RunPod", "rpa_{}", "ABCDEFGHIJ{}")
    plant("refresh token of Google", "1//0g{}", "abcdefghij{}")
    plant("client secret of Google", "GOCSPX-{}", "abcdefghij{}")
    plant(
        "body of a private key",
        "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEA{}AoIBAQC7\nVJTUt9Us8cKjMzEfYyjiWA4R==",
        "{}",
    )
    plant("Artifactory", "AKC{}", "abcdefghij{}")
    plant("Discord", "sent {}", "M{}abcdefghij.GaBcDe.abcdefghijklmnopqrstuvwxyz0")
    plant("runner of GitLab", "GR1348941{}", "abcdefghij{}")
    plant("Square", "sq0csp-{}", "abcdefghij{}")
    plant("Telegram", "sent 123456789:{}", "abcdefghijklmnopqrstuvwxyzabcdefghi")
    plant("Mailchimp", "sent {}", "0123456789abcdef0123456789abcde1-us14")
    plant("Twilio", "sent {}", "SK0123456789abcdef0123456789abcde2")
    plant("Bearer in a sentence", "sent Bearer {} and was refused")
    plant("private key", "-----BEGIN RSA " + "PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----\nnext line")
    plant("private key cut short", "-----BEGIN OPENSSH " + "PRIVATE KEY-----\nb3BlbnNz{}")
    # forms that the issue of damaged and hostile evidence did not name, by their kin
    plant("YAML block", "hub:\n  api_key: |\n    {}\n  lr: 1\n")
    plant("folded YAML block, of two lines", "password: >-\n  first line of\n  {}\n")
    plant("YAML block with an indent", "hf_token: |2-\n    {}")
    plant("YAML block in JSON", json.dumps({"text": "client_secret: |\n  {}\nlr: 1\n"}))
    plant("YAML list", "api_keys:\n  - first\n  - {}\nlr: 1")
    plant("YAML anchor", "password: &one {}")
    plant("YAML value with blanks", "\npassphrase: correct horse {}\n")
    plant("TOML in lines", 'api_key = """\n{}\n"""')
    plant("Python in lines", "api_key = '''{}'''")
    plant("Python in pieces", "{'api_key': 'first-half-of-it'\n            '{}'}")
    plant("bytes", "hf_token=b'{}'")
    plant("raw text", 'password = r"{}"')
    plant("typed text", 'api_key: str = "{}"')
    plant("typed and optional", "hf_token: str | None = '{}'")
    plant("SecretStr", "api_key=SecretStr('{}')")
    plant("Rust's Some", 'Config { token: Some("{}") }')
    plant("list of tokens", "hf_tokens=['first','{}']")
    plant("default by name", "os.getenv('HF_TOKEN', default='{}')")
    plant("default before the name", "os.getenv(default='{}', key='HF_TOKEN')")
    plant("default of a lower-case name, by name", 'env.get("openai_api_key", default="{}")')
    plant("default of an attribute", "getattr(args, 'api_key', '{}')")
    plant("default of an option", "parser.add_argument('--api-key', type=str, default='{}')")
    plant("default of a field", 'click.option("--hf-token", "hf_token", default="{}", help="of the hub")')
    plant("default of a resolver", "${oc.env:HF_TOKEN,{}}")
    plant("default of a shell", "${HF_TOKEN:-{}}")
    plant("default after or", "os.environ.get('HF_TOKEN') or '{}'")
    plant("default of JavaScript", "process.env.HF_TOKEN ?? '{}'")
    plant("attribute that is set", "setattr(config, 'hf_token', '{}')")
    plant("call that sets", "client.set_api_key('{}')")
    plant("pair of names", "[('api_key', '{}'), ('lr', 1)]")
    plant("header of HTTP/2", "(b'authorization', b'Basic {}')")
    plant("token in a message", "AuthError: token '{}' was refused")
    plant("token in double quotes", 'the token "{}" is not valid')
    plant("token without quotes", "invalid token {} for this repository")
    plant("key in a message", "the API key '{}' has no access")
    plant("secret in a message", "cannot open with secret {}")
    plant("password of several words", "login failed: password 'two words {}' was refused")
    plant("credentials in a message", "wrong credentials {}")
    plant("access key in a message", "Secret access key: {}")
    plant("session of underscores", "GET /jobs?session_id={}")
    plant("session of a configuration", "sessionId: {}")
    plant("session of a query", "https://host/jobs?page=2&sid={}")
    plant("ODBC", "DRIVER=x;SERVER=db;UID=sa;PWD={}")
    plant("Oracle", "jdbc:oracle:thin:me/{}@db:1521/x")
    plant("pgpass", "db.example:5432:mlflow:me:{}")
    plant("basic authentication of requests", "HTTPBasicAuth('me', '{}')")
    plant("basic authentication in a sentence", "sent Basic {}=")
    plant("bearer in quotes", "sent Bearer '{}'")
    plant("GitLab variable", json.dumps({"key": "HF_TOKEN", "value": "{}"}))
    plant("variable, turned round", json.dumps({"value": "{}", "name": "HF_TOKEN"}))
    plant("attribute of XML", '<add key="ApiKey" value="{}"/>')
    plant("JSON web key", json.dumps({"kty": "RSA", "d": "{}"}), "abcdefghij{}")
    plant("continued line", "--api-key \\\n{}")
    plant("here string", "docker login --password-stdin <<< {}")
    plant("piped into a login", "echo {} | docker login --password-stdin")
    plant("literal of kubectl", "kubectl create secret generic x --from-literal=value={}")
    plant("ldapsearch", "ldapsearch -x -D cn=me -w {}")
    plant("ipmitool", "ipmitool -H bmc -U me -P {} power status")
    plant("mongosh", "mongosh -u me -p {} db")
    plant("sqlcmd", "sqlcmd -S db -U sa -P {}")
    plant("lftp", "lftp -u me,{} host")
    plant("unzip", "unzip -P {} data.zip")
    begin = "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtz"
    plant("body of an OpenSSH key", begin + "\n{}AAAAgQ==")
    plant("body of an elliptic key", "MHcCAQEEI{}AoGCCqGSM49AwEHoUQDQgAEVJTUt9Us8cKjMzEfYyji", "{}")
    plant("private lines of PuTTY", "Private-Lines: 2\nAAAAgQDx{}\nAAAAgQDy\nPrivate-MAC: 1")
    plant("key in base64", "tls: LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0tCk1J{}")
    plant("crypted password", "me:$6$saltsalt${}abcdefghijklmnop:19000:0")
    plant("Notion", "sent secret_{}", "abcdefghijABCDEFGHIJabcdefghij{}")
    plant("Modal", "sent as-{}", "abcdefghij{}")
    plant("Azure's client secret", "sent {}", "abc8Q~{}abcdefghijklmnopqrs")
    plant("Mailgun", "sent key-{}", "0123456789abcdef0123456789abcde3")
    plant("Postman", "sent PMAK-{}", "0123456789abcdef01234567-{}")
    plant("Doppler", "sent dp.st.dev.{}", "abcdefghij{}")
    plant("Pulumi", "sent pul-{}", "0123456789abcdef0123456789abcdef01234564")
    plant("Terraform", "sent abcdefghij1234.atlasv1.{}", "abcdefghijabcdefghijabcdefghijabcdefghijabcdefghij{}")
    plant("PlanetScale", "sent pscale_pw_{}", "abcdefghijabcdefghij{}")
    plant("Supabase", "sent sbp_{}", "0123456789abcdef0123456789abcdef01234565")
    plant("New Relic", "sent NRAK-{}", "ABCDEFGHIJKLMNOPQRST{}")
    plant("Rubygems", "sent rubygems_{}", "0123456789abcdef0123456789abcdef0123456789abcde6")
    plant("Sourcegraph", "sent sgp_{}", "0123456789abcdef0123456789abcdef01234567")
    plant("Alibaba", "sent LTAI{}", "5tAbCdEfGh{}")
    plant("Tencent", "sent AKID{}", "AbCdEfGhIjAbCdEfGh{}")
    plant("Volcengine", "sent AKLT{}", "AbCdEfGhIjAbCdEfGh{}")
    plant("E2B", "sent e2b_{}", "0123456789abcdef0123456789abcdef01234568")
    plant("Kaggle", "sent KGAT_{}", "0123456789abcdef0123456789abcde9")
    plant("1Password", "sent ops_{}", "eyJ0abcdefghij{}")
    plant("Fly", "sent FlyV1 fm2_{}", "abcdefghijabcdefghij{}")
    plant("Bedrock", "sent ABSK{}", "QmVkcm9ja0FQSUtleS1{}abcdefghij=")
    plant("Cloudflare", "sent v1.0-{}", "0123456789abcdef01234567-0123456789abcdef{}")
    plant("DigitalOcean", "sent doo_v1_{}", "0123456789abcdef0123456789abcdef0123456789abcdef012345670")
    plant("Airtable", "sent {}", "patabcdefghij1234.0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef")
    return found


PLANTED = _planted()

# What a diagnosis needs: nothing in these is withheld.
HARMLESS = [
    "the engines differ in other tokens: engine 1 in 12 of 64 samples",
    "max_tokens=512",
    "--token-file FILE",
    "--max_new_tokens 1024",
    "max_num_batched_tokens: 8192",
    "kv_cache_tokens: asked 16384",
    "num_tokens=17",
    "tokens: 3,512 of 3,512",
    "tokenizer=Qwen/Qwen3-8B",
    "--tokenizer gpt2",
    "tokenizer_mode='auto'",
    "TOKENIZERS_PARALLELISM=false",
    "eos_token_id=151645",
    "eos_token='<|im_end|>'",
    '"pad_token": "<pad>"',
    "skip_special_tokens=True",
    "stop_token_ids=[1, 2]",
    "per_token_logps",
    "token_level_rewards",
    "token position 17",
    "next token: 1045",
    "num_key_value_heads=8",
    "key_padding_mask",
    "--key-value store",
    "--input_key context_messages",
    "data.prompt_key=prompt",
    "--label_key answer",
    "reward_fn_key=data_source",
    "key=3",
    "cache_key: layers.0",
    "primary_key=id",
    "apply_chat_template",
    "api key: none",
    "['TOKEN_IDS', 'LENGTHS']",
    '{"name": "max_tokens", "value": "512"}',
    "loader.key=prompt",
    "run.login()",
    "fw_bw_overlap_with_the_backward_pass",
    "commit b292bb7d4c0e9f2a61b0a4b8d39e5f3b8f3c7a11",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "git+https://github.com/vllm-project/vllm.git@b292bb7d4c0e9f2a61b0a4b8d39e5f3b8f3c7a11",
    "docker.io/vllm/vllm-openai:v0.31.0@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "http://127.0.0.1:8000/v1/completions",
    "tcp://10.0.0.7:29500",
    "/home/me/project/train.py:42 in step",
    "KeyError: 'reward_model.score'",
    "torch.cuda.AuthError: no such device",
    "ValueError: max_tokens must be positive",
    "CUDA error: out of memory at engine.py:12",
    "sglang::scheduler",
    "ray::Actor.step",
    "hf_overrides",
    "hf_config.json",
    "task-specific-adapter",
    "sk-learn",
    "risk-free-rate",
    "--token is missing",
    "the password is wrong",
    "the password was rejected: invalid.",
    "max_new_tokens 1024x768",
    "os.environ.get('MASTER_ADDR', 'localhost')",
    "probes/secrets.py:41 in read",
    "use_auth_token=False",
    "--use_wandb True",
    "wandb=null",
    "password=None",
    "api_key: ${oc.env:WANDB_API_KEY}",
    "--hf-token $HF_TOKEN",
    "docker run --user 1000:1000 image",
    "python -u train.py",
    "12:30:15",
    "forward_pass=0.3",
    "author: me",
    "authors=3",
    "Qwen/Qwen2.5-0.5B-Instruct",
    "meta-llama/Llama-3.1-8B",
    "model.layers.0.self_attn.k_proj.weight",
    "lr=1e-6",
    "candidate:skip-tensor=model.layers.2.mlp.down_proj.weight@3",
    "baseline:vllm@0.31.0",
    "compatible",
    "patience=3",
    "spatial_merge_size=2",
    "step 3: 0.5 s",
    "layers.0.mlp.experts.17.w1",
    "rank 1 (actor)",
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "bytes=2048",
    "RANK=1",
    "NCCL_DEBUG=INFO",
    "first token: 'Hello'",
    "accepted_token_rate=0.7",
    "draft_tokens=4",
    "signal 11",
    "secondary",
    "sort --key 2,3nr",
    "sort --key=2",
    "join --key sample_id",
    "--key reward_model.v2",
    "--key layers.12.mlp",
    "curl --key /etc/ssl/client.pem",
    "key=value",
    "key=(4096, 8, 128)",
    '{"key": "prompt", "value": "answer"}',
    "https://host/errors?code=404",
    "https://host/run?code=out-of-memory",
    "exit%20code%3D1",
    "%22max_tokens%22%3A%22512%22",
    "{&quot;max_tokens&quot;: &quot;512&quot;}",
    "the token was set to the default of the engine",
    "MAX_TOKENS|512",
    "max_tokens%3D512",
    "https://a/?to=https%3A%2F%2Fb%2F%3Fpage%3D2",
    "TOKEN_IDS\tLENGTHS",
    "MAX_TOKENS\t512",
    "token\tlogprob",
    "HF_TOKEN missing_or_refused",
    "WANDB_API_KEY is not set",
    "token -> id",
    "prompt_tokens -> completion_tokens",
    "next_token->logits",
    "KUBECONFIG=/home/me/.kube/config",
    "smbclient -U me //host/share",
    "100%|##########| 51/51",
    '{"username": "me", "key": null}',
    "monkey",
    "passed",
    "token_ids=[151644, 8948, 198]",
    "max_tokens 512",
    "pad_token '<pad>'",
    'eos_token "</s>"',
    "bos_token '<|begin_of_text|>'",
    "unk_token=b'<unk>'",
    "stop_token_ids: |\n  151645\n",
    "token 'Hello' has id 9707",
    "the token 'Ġunbelievably' differs",
    "token b'\\xe2\\x96\\x81'",
    "token 151645 at position 17",
    "token <|reserved_special_token_17|> was drawn",
    "tokens: ['Hello', 'world']",
    "tokens: ['<eos>', '<pad>']",
    "convert_tokens_to_ids('<eos>')",
    "tokenizer.decode('abc')",
    "getattr(config, 'pad_token_id', 151643)",
    "config.get('max_tokens', 'unlimited-by-default-2')",
    "parser.add_argument('--max-tokens', type=int, default='512')",
    "os.environ.get('NCCL_SOCKET_IFNAME', 'eth0:1a2b3c4d5e')",
    "dataset_key: str = 'math-500-v2a3b'",
    "token_type: str = 'bpe12345abc'",
    "session_2026-11-28_00-27-09_123456_7890",
    "session_dir=/tmp/ray/session_2026-11-28_00-27-09_123456_7890",
    "session_id=17",
    "the secret is missing",
    "credentials were refused",
    "primary key: sample_id_2b3c4d5e",
    "KeyError: key 'reward_model.score'",
    "basic block 17: add r1, r2",
    "PWD=/home/me/project",
    "a.py:5432:3:4:5",
    "train.py:1234: in step",
    "echo s3cr3T00vAlu3 | sort",
    "unzip -P",
    "tar -P -xf data.tar",
    "python -w module",
    "key-value-store-with-a-long-name",
    "secret_santa_of_the_year",
    "as-published-in-the-paper-of-2025",
    "$6 per hour",
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk",
    "eJzt1DEBAAAAwqD1T20Hb6AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA4G8GQAABvXk5/w==",
    "b3BlbmVk",
    f"data:font/woff2;base64,{'d09GMgABAAAAA' * 4}/MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj",
    '{"kty": "tokens", "n": 5}',
    "v1.0-rc2",
    "0.19.1.dev12+g1a2b3c4d5",
    "events/actor-0-4010.jsonl",
    "runs/20261128-002709-9f86d081/candidate",
    "or 'greedy-decoding-9a8b'",
]
