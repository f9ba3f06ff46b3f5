"""Model, data and training, as an app of Flower has them."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.GroupNorm(2, 4)
        self.head = nn.Linear(144, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.norm(self.conv(x))).flatten(1))


def load_data(
    partition: int, partitions: int
) -> tuple[DataLoader[tuple[torch.Tensor, ...]], DataLoader[tuple[torch.Tensor, ...]]]:
    digits = load_digits()
    images, labels = torch.tensor(digits.images[:, None] / 16).float(), torch.tensor(digits.target)
    own = slice(partition, None, partitions)
    images, labels = images[own], labels[own]
    train, held = TensorDataset(images[:8], labels[:8]), TensorDataset(images[8:], labels[8:])
    return DataLoader(train, batch_size=4, shuffle=True), DataLoader(held, batch_size=32)


def train(net: Net, loader: DataLoader[tuple[torch.Tensor, ...]], epochs: int, lr: float) -> float:
    net.train()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    total = 0.0
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = criterion(net(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total


def test(net: Net, loader: DataLoader[tuple[torch.Tensor, ...]]) -> float:
    net.eval()
    criterion = nn.CrossEntropyLoss()
    with torch.no_grad():
        return sum(criterion(net(images), labels).item() for images, labels in loader)


test.__test__ = False  # type: ignore[attr-defined]  # no test of pytest
