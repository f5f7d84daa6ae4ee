"""What must not leave the host is masked, and what helps is not."""

import pytest

from ascendd.preflight.secrets_mask import mask


@pytest.mark.parametrize(
    "text",
    [
        "OPENAI_API_KEY=s3cret-value", "api_key: s3cret-value", '{"password": "s3cret-value"}', "Authorization: Bearer s3cret-value",
        "curl -H 'authorization: Bearer s3cret-value'", "https://user:s3cret-value@mirror.example/simple", "HF_TOKEN=s3cret-value",
        "key sk-s3cret-value in a line", "-----BEGIN RSA PRIVATE KEY-----\ns3cret-value\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\ns3cret-value", "db_passwd = 's3cret-value with a blank'", "Cookie: s3cret-value",
    ],
)  # fmt: skip
def test_a_secret_is_masked(text: str) -> None:
    """The value goes, whatever writes it."""
    masked = mask(text)

    assert "s3cret-value" not in masked
    assert "***" in masked


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens=512", "num_batched_tokens: 2048", "tokenizer.json is not there", "ASCEND_HOME_PATH=/usr/local/Ascend",
        "api_key_file: /etc/ascendd/keys/qwen2", "http://127.0.0.1:8000/readyz", "NPU 5: Double Bit Error Count 2",
    ],
)  # fmt: skip
def test_what_is_no_secret_stays(text: str) -> None:
    """Helpers need sizes, paths and addresses."""
    assert mask(text) == text
