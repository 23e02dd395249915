"""An agent of LangGraph (pip install langgraph langchain-openai): gradus run examples/agents/lang_graph.py:agent --model MODEL"""

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

PRICES = {"lamp": 20, "chair": 45, "phone": 300, "clock": 15, "radio": 60, "desk": 120}
tasks = [
    {"question": f"What do {count} {item}s cost?", "answer": str(count * price)}
    for item, price in PRICES.items()
    for count in range(2, 12)
]


@tool
def price(item: str) -> str:
    """Look up what one piece of an item costs."""
    return str(PRICES.get(item, "unknown"))


async def agent(task, client):
    """Answer a question about prices with a tool. This framework makes a client of its own, from an address and a key."""
    model = ChatOpenAI(model="policy", base_url=str(client.base_url), api_key=client.api_key).bind_tools([price])

    async def speak(state: MessagesState):
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("speak", speak)
    graph.add_node("tools", ToolNode([price]))
    graph.add_edge(START, "speak")
    graph.add_conditional_edges("speak", tools_condition)
    graph.add_edge("tools", "speak")
    said = [("system", "Answer with a number."), ("user", task["question"])]
    end = await graph.compile().ainvoke({"messages": said})
    return end["messages"][-1].content


def right(result, answer, **_):
    """1 if the answer holds the right number."""
    return [float(wanted in str(each)) for each, wanted in zip(result, answer, strict=True)]


rewards = [right]
