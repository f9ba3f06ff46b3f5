"""The client of the app; `quickapp.chosen.MODS` are its mods."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickapp import task
from quickapp.chosen import MODS

app = ClientApp(mods=MODS)


def _loaded(message: Message, context: Context):
    net = task.Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return net, task.load_data(context.node_config["partition-id"], context.node_config["num-partitions"])


@app.train()
def train(message: Message, context: Context) -> Message:
    net, (loader, _) = _loaded(message, context)
    loss = task.train(net, loader, context.run_config["local-epochs"], message.content["config"]["lr"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    net, (_, loader) = _loaded(message, context)
    metrics = MetricRecord({"eval_loss": task.test(net, loader), "num-examples": len(loader.dataset)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)
