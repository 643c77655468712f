"""The user's file of models: what no model could be asked with is refused by name, and a key is never repeated."""

from pathlib import Path

import pytest

from handrail.errors import ConfigurationError
from handrail.models.catalog import load_models, open_model

WORK = 'provider = "openai"\nmodel = "gpt-5"\n'


def written(tmp_path: Path, table: str) -> str:
    file = tmp_path / "models.toml"
    file.write_text(f"[models.work]\n{table}")
    return str(file)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (WORK + 'stream = "yes"', "stream must be true or false"),
        (WORK + 'extra = ["temperature"]', "extra must be a table"),
        (WORK + "max_tokens_field = 1", "max_tokens_field must be a string"),
        (WORK + "timeout = true", "timeout must be a positive number of seconds"),
        (WORK + "base_url = 8000", "base_url must be a string"),
        (WORK + 'base_url = "llm.example.org/v1"', "base_url must be an address like https://"),
        (WORK + 'base_url = "file:///etc/passwd"', "base_url must be an address like https://"),
        (WORK + 'base_url = "http://"', "base_url must be an address like https://"),
        (WORK + 'base_url = "http://h:99999/"', "base_url must be an address like https://"),
        (WORK + 'base_url = "http://[::1/"', "base_url must be an address like https://"),
        (WORK + "key_env = 7", "key_env must be a string"),
        (WORK + 'url = "http://h/"', "unknown key 'url'"),
        ('provider = ["openai"]\nmodel = "gpt-5"', "provider must be a string"),
        ('provider = "nobody"\nmodel = "gpt-5"', "needs a model, and a provider out of: openai"),
        ('provider = "openai"\nmodel = ""', "needs a model, and a provider out of: openai"),
        ('provider = "openai"', "needs a model, and a provider out of: openai"),
    ],
)
def test_a_table_that_no_model_could_be_asked_with_is_refused_with_its_place(
    table: str, said: str, tmp_path: Path
) -> None:
    path = written(tmp_path, table)
    with pytest.raises(ConfigurationError) as refused:
        load_models(path)
    assert str(refused.value).startswith(f"{path}: models.work")
    assert said in str(refused.value)


def test_a_key_in_place_of_its_variables_name_is_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load_models(written(tmp_path, WORK + 'key_env = "sk-live-1234"'))
    assert "key_env must be the name of an environment variable" in str(refused.value)
    assert "1234" not in str(refused.value)


def test_a_server_without_a_key_needs_none_and_a_named_key_is_needed(tmp_path: Path) -> None:
    local = 'base_url = "http://127.0.0.1:8000/v1"\n'
    for table in (WORK + local, WORK + local + 'key_env = ""'):
        assert open_model("work", path=written(tmp_path, table), environment={}).name
    path = written(tmp_path, WORK + local + 'key_env = "WORK_LLM_KEY"')
    with pytest.raises(ConfigurationError, match="set the environment variable WORK_LLM_KEY"):
        open_model("work", path=path, environment={})
    assert open_model("work", path=path, environment={"WORK_LLM_KEY": "k"}).name
