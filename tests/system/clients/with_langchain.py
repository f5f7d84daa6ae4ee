"""A chat, a stream, a tool and a schema, by langchain-openai; the argument is the base URL."""

import sys

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Reply(BaseModel):
    """What is asked for."""

    ok: bool


@tool
def sub(a: bool) -> bool:
    """Take away."""
    return not a


model = ChatOpenAI(model="tiny", base_url=sys.argv[1], api_key="none", max_tokens=300, temperature=0, seed=1)
assert isinstance(model.invoke("hi", max_tokens=8).content, str)
assert len(list(model.stream("hi", max_tokens=8))) > 1
call = model.bind_tools([sub], tool_choice="sub", parallel_tool_calls=False).invoke("hi").tool_calls[0]
assert call["name"] == "sub", call
assert isinstance(call["args"]["a"], bool), call
assert isinstance(model.with_structured_output(Reply, method="json_schema").invoke("hi").ok, bool)
print("ok")
