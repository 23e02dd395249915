"""One small agent in each client: it looks a color up with a tool, and says it. ``AGENTS`` names them; each imports its own framework.

None knows anything of Gradus but an OpenAI client, or an address and a key.
"""

# pyright: basic, reportMissingImports=false
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

INSTRUCTIONS = "Look before you answer. Answer with the color."
TOOL = {
    "name": "look",
    "description": "Look at a thing and say its color.",
    "parameters": {"type": "object", "properties": {"thing": {"type": "string"}}, "required": ["thing"]},
}


def tool_of(task: Any) -> Callable[[str], str]:
    """The tool: it knows this task's color."""

    def look(thing: str) -> str:
        """Look at a thing and say its color.

        Args:
            thing: The name of the thing.
        """
        return task["hidden"]

    return look


def _address(client: Any) -> dict[str, str]:
    return {"base_url": str(client.base_url), "api_key": client.api_key}


async def openai_chat(task: Any, client: Any) -> str:
    said: list[Any] = [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": task["question"]}]
    tools = [{"type": "function", "function": TOOL}]
    for _ in range(4):
        reply = (await client.chat.completions.create(model="policy", messages=said, tools=tools)).choices[0].message
        if not reply.tool_calls:
            return reply.content
        said.append(reply.model_dump(exclude_none=True))
        said += [{"role": "tool", "tool_call_id": one.id, "content": task["hidden"]} for one in reply.tool_calls]
    return "no answer"


async def openai_responses(task: Any, client: Any) -> str:
    items: list[Any] = [{"role": "user", "content": task["question"]}]
    for _ in range(4):
        tools = [{"type": "function", **TOOL}]
        stream = await client.responses.create(
            model="policy", instructions=INSTRUCTIONS, input=items, tools=tools, stream=True
        )
        reply: Any = None
        async for event in stream:
            reply = event.response if event.type == "response.completed" else reply
        calls = [item for item in reply.output if item.type == "function_call"]
        if not calls:
            return reply.output_text
        items += [item.model_dump(exclude_none=True) for item in reply.output]
        items += [{"type": "function_call_output", "call_id": one.call_id, "output": task["hidden"]} for one in calls]
    return "no answer"


async def openai_agents(task: Any, client: Any) -> str:
    from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled

    set_tracing_disabled(True)
    model = OpenAIChatCompletionsModel(model="policy", openai_client=client)
    clerk = Agent(name="clerk", instructions=INSTRUCTIONS, model=model, tools=[function_tool(tool_of(task))])
    return str((await Runner.run(clerk, task["question"], max_turns=4)).final_output)


async def anthropic_messages(task: Any, client: Any) -> str:
    from anthropic import AsyncAnthropic

    address = str(client.base_url).rstrip("/").removesuffix("/v1")
    tool: Any = {"name": "look", "description": TOOL["description"], "input_schema": TOOL["parameters"]}
    said: list[Any] = [{"role": "user", "content": task["question"]}]
    async with AsyncAnthropic(base_url=address, api_key=client.api_key, max_retries=0) as claude:
        for _ in range(4):
            asked: Any = {
                "model": "policy",
                "max_tokens": 64,
                "system": INSTRUCTIONS,
                "messages": said,
                "tools": [tool],
            }
            async with claude.messages.stream(**asked) as stream:
                reply = await stream.get_final_message()
            calls = [block for block in reply.content if block.type == "tool_use"]
            if not calls:
                return "".join(block.text for block in reply.content if block.type == "text")
            said.append(
                {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in reply.content]}
            )
            results = [{"type": "tool_result", "tool_use_id": one.id, "content": task["hidden"]} for one in calls]
            said.append({"role": "user", "content": results})
    return "no answer"


async def pydantic_ai(task: Any, client: Any) -> str:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    clerk = Agent(instructions=INSTRUCTIONS, tools=[tool_of(task)])
    model = OpenAIChatModel("policy", provider=OpenAIProvider(openai_client=client))
    return str((await clerk.run(task["question"], model=model)).output)


async def langgraph(task: Any, client: Any) -> str:
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition

    look = tool(tool_of(task))
    model = ChatOpenAI(model="policy", **_address(client)).bind_tools([look])

    async def speak(state: Any) -> Any:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("speak", speak)
    graph.add_node("tools", ToolNode([look]))
    graph.add_edge(START, "speak")
    graph.add_conditional_edges("speak", tools_condition)
    graph.add_edge("tools", "speak")
    said = [("system", INSTRUCTIONS), ("user", task["question"])]
    end = await graph.compile().ainvoke({"messages": said}, {"recursion_limit": 8})
    return end["messages"][-1].content


async def agno(task: Any, client: Any) -> str:
    from agno.agent import Agent
    from agno.models.openai import OpenAIChat

    model = OpenAIChat(id="policy", **_address(client))
    clerk = Agent(model=model, tools=[tool_of(task)], instructions=INSTRUCTIONS, telemetry=False, tool_call_limit=4)
    return str((await clerk.arun(task["question"])).content)


async def strands(task: Any, client: Any) -> str:
    from strands import Agent, tool
    from strands.models.openai import OpenAIModel

    model = OpenAIModel(client_args=_address(client), model_id="policy")
    clerk = Agent(model=model, tools=[tool(tool_of(task))], system_prompt=INSTRUCTIONS, callback_handler=None)
    return str(await clerk.invoke_async(task["question"])).strip()


async def llama_index(task: Any, client: Any) -> str:
    from llama_index.core.agent.workflow import FunctionAgent
    from llama_index.llms.openai_like import OpenAILike

    options: Any = {"is_chat_model": True, "is_function_calling_model": True, "context_window": 4096}
    model = OpenAILike(model="policy", api_base=str(client.base_url), api_key=client.api_key, max_retries=0, **options)
    clerk = FunctionAgent(tools=[tool_of(task)], llm=model, system_prompt=INSTRUCTIONS)
    return str(await clerk.run(task["question"], max_iterations=4))


async def autogen(task: Any, client: Any) -> str:
    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    can: Any = {"vision": False, "function_calling": True, "json_output": True, "structured_output": True}
    model = OpenAIChatCompletionClient(model="policy", model_info={**can, "family": "unknown"}, **_address(client))
    tools: Any = [tool_of(task)]
    options: Any = {"reflect_on_tool_use": True, "system_message": INSTRUCTIONS, "description": "a clerk"}
    clerk = AssistantAgent("clerk", model_client=model, tools=tools, **options)
    return str((await clerk.run(task=task["question"])).messages[-1].content)


async def camel(task: Any, client: Any) -> str:
    from camel.agents import ChatAgent
    from camel.models import ModelFactory
    from camel.toolkits import FunctionTool
    from camel.types import ModelPlatformType
    from camel.utils import BaseTokenCounter

    class Characters(BaseTokenCounter):
        """Its own counter loads a file from the net."""

        def count_tokens_from_messages(self, messages: Any) -> int:
            return len(str(messages))

        def encode(self, text: str) -> list[int]:
            return list(text.encode())

        def decode(self, token_ids: list[int]) -> str:
            return bytes(token_ids).decode()

    model = ModelFactory.create(
        model_platform=ModelPlatformType.OPENAI_COMPATIBLE_MODEL,
        model_type="policy",
        url=str(client.base_url),
        api_key=client.api_key,
        model_config_dict={},
        token_counter=Characters(),
    )
    clerk = ChatAgent(INSTRUCTIONS, model=model, tools=[FunctionTool(tool_of(task))])
    return (await clerk.astep(task["question"])).msgs[0].content


async def google_adk(task: Any, client: Any) -> str:
    from google.adk.agents import LlmAgent
    from google.adk.models.lite_llm import LiteLlm
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    model = LiteLlm(model="openai/policy", api_base=str(client.base_url), api_key=client.api_key)
    clerk = LlmAgent(name="clerk", model=model, instruction=INSTRUCTIONS, tools=[tool_of(task)])
    runner = InMemoryRunner(agent=clerk, app_name="clerk")
    session = await runner.session_service.create_session(app_name="clerk", user_id="u")
    said = types.Content(role="user", parts=[types.Part(text=task["question"])])
    text = ""
    async for event in runner.run_async(user_id="u", session_id=session.id, new_message=said):
        for part in (event.content and event.content.parts) or ():
            text = part.text or text
    return text


def crewai(task: Any, client: Any) -> str:
    os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true"}
    from crewai import LLM, Agent, Crew, Task
    from crewai.tools import tool

    model = LLM(model="openai/policy", **_address(client))
    clerk = Agent(
        role="clerk",
        goal="say the color",
        backstory=INSTRUCTIONS,
        llm=model,
        tools=[tool("look")(tool_of(task))],
        max_iter=4,
    )
    job = Task(description=task["question"], expected_output="the color", agent=clerk)
    return str(Crew(agents=[clerk], tasks=[job], verbose=False).kickoff())


def haystack(task: Any, client: Any) -> str:
    from haystack.components.agents import Agent
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.dataclasses import ChatMessage
    from haystack.tools import create_tool_from_function
    from haystack.utils import Secret

    key = Secret.from_token(client.api_key)
    model = OpenAIChatGenerator(model="policy", api_base_url=str(client.base_url), api_key=key)
    tools = [create_tool_from_function(tool_of(task))]
    clerk = Agent(chat_generator=model, tools=tools, system_prompt=INSTRUCTIONS, max_agent_steps=4)
    return clerk.run(messages=[ChatMessage.from_user(task["question"])])["messages"][-1].text


async def instructor(task: Any, client: Any) -> str:
    import instructor as framework
    from pydantic import BaseModel

    class Step(BaseModel):
        """Look, or say the color."""

        look: bool
        color: str

    structured: Any = framework.from_openai(client, mode=framework.Mode.JSON)
    said = [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": task["question"]}]
    for _ in range(4):
        step = await structured.chat.completions.create(
            model="policy", messages=list(said), response_model=Step, max_retries=0
        )
        if not step.look:
            return step.color
        said.append({"role": "assistant", "content": step.model_dump_json()})
        said.append({"role": "user", "content": task["hidden"]})
    return "no answer"


def smolagents(task: Any, client: Any) -> str:
    from smolagents import LogLevel, OpenAIServerModel, ToolCallingAgent, tool

    model = OpenAIServerModel(model_id="policy", api_base=str(client.base_url), api_key=client.api_key)
    clerk = ToolCallingAgent(
        tools=[tool(tool_of(task))], model=model, max_steps=4, verbosity_level=LogLevel.OFF, instructions=INSTRUCTIONS
    )
    return str(clerk.run(task["question"]))


async def dspy(task: Any, client: Any) -> str:
    import dspy as framework

    # Its cache would answer a question that was asked before.
    model = framework.LM(
        "openai/policy", api_base=str(client.base_url), api_key=client.api_key, cache=False, num_retries=0
    )
    clerk = framework.ReAct(framework.Signature("question -> answer", INSTRUCTIONS), tools=[tool_of(task)], max_iters=3)
    with framework.context(lm=model, adapter=framework.JSONAdapter()):
        return str((await clerk.acall(question=task["question"])).answer)


async def semantic_kernel(task: Any, client: Any) -> str:
    from semantic_kernel.agents import ChatCompletionAgent
    from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion
    from semantic_kernel.functions import kernel_function

    class Eyes:
        """A plugin with one function."""

        @kernel_function(description=TOOL["description"])
        def look(self, thing: str) -> str:
            return task["hidden"]

    service = OpenAIChatCompletion(ai_model_id="policy", async_client=client)
    clerk = ChatCompletionAgent(service=service, name="clerk", instructions=INSTRUCTIONS, plugins=[Eyes()])
    return str((await clerk.get_response(messages=task["question"])).content)


AGENTS: dict[str, Any] = {
    "openai chat": openai_chat,
    "openai responses, streamed": openai_responses,
    "openai-agents": openai_agents,
    "anthropic, streamed": anthropic_messages,
    "pydantic-ai": pydantic_ai,
    "langgraph": langgraph,
    "agno": agno,
    "strands-agents": strands,
    "llama-index": llama_index,
    "autogen-agentchat": autogen,
    "camel-ai": camel,
    "google-adk": google_adk,
    "crewai": crewai,
    "haystack-ai": haystack,
    "instructor": instructor,
    "smolagents": smolagents,
    "dspy": dspy,
    "semantic-kernel": semantic_kernel,
}
# What the agents of ``AGENTS`` need besides an OpenAI client.
REQUIREMENTS: dict[str, tuple[str, ...]] = {
    "openai chat": (),
    "openai responses, streamed": (),
    "openai-agents": ("openai-agents",),
    "anthropic, streamed": ("anthropic",),
    "pydantic-ai": ("pydantic-ai-slim[openai]",),
    "langgraph": ("langchain-openai", "langgraph"),
    "agno": ("agno", "openai"),
    "strands-agents": ("strands-agents[openai]",),
    "llama-index": ("llama-index-core", "llama-index-llms-openai-like"),
    "autogen-agentchat": ("autogen-agentchat", "autogen-ext[openai]"),
    "google-adk": ("google-adk", "litellm"),
    "crewai": ("crewai",),
    "haystack-ai": ("haystack-ai",),
    "instructor": ("instructor",),
    "camel-ai": ("camel-ai", "mcp<2"),
    "smolagents": ("smolagents[openai]",),
    "dspy": ("dspy",),
    "semantic-kernel": ("semantic-kernel",),
}
COLORS = ("red", "blue")


def call(name: str, **arguments: str) -> str:
    """A call of a tool as a model writes it."""
    return json.dumps({"name": name, "arguments": arguments})


def _compact(**fields: Any) -> str:
    return json.dumps(fields, separators=(",", ":"))


def _react(tool: str, **arguments: str) -> str:
    return _compact(next_thought="so", next_tool_name=tool, next_tool_args=arguments)


@dataclass(frozen=True)
class Sayings:
    """What there is to say in a client's own form: look first, then a color. ``others``: what must be said besides.

    ``opening``: what the endpoint puts in front of each answer, because the client demands a call.
    """

    look: str = call("look", thing="it")
    colors: tuple[str, ...] = COLORS
    unknown: str = call("listen", thing="it")
    others: tuple[str, ...] = ()
    opening: str = ""


# Clients whose model does not call tools and speak then.
SAYINGS: dict[str, Sayings] = {
    "instructor": Sayings(
        look=_compact(look=True, color=""), colors=tuple(_compact(look=False, color=color) for color in COLORS)
    ),
    "smolagents": Sayings(colors=tuple(call("final_answer", answer=color) for color in COLORS), opening='{"name": "'),
    "dspy": Sayings(
        look=_react("look", thing="it"),
        colors=tuple(_compact(reasoning="so", answer=color) for color in COLORS),
        unknown=_react("listen", thing="it"),
        others=(_react("finish"),),
    ),
}
