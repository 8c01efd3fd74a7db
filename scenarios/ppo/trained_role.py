"""The loop that trains a role: updates over mini-batches, each from the gradients of its micro-batches."""

from __future__ import annotations

from scenarios.ppo.losses import Loss
from scenarios.ppo.optimizer import Optimizer
from scenarios.ppo.role import MiniBatch, Report, Role, Trained


class TrainedRole(Role):
    """A role whose model is trained. `load` makes the optimizer."""

    optimizer: Optimizer

    def train(self, step: int, shares: list[MiniBatch]) -> Trained:
        """Make one update for each mini-batch. Raises DivergedError."""
        report = Report()
        self.pristine = False
        self._before_training()
        with self.recorder.span(f"{self.name}_train", step=step):
            for share in shares:
                # Gradients add up over the micro-batches: each loss is a part of one mean over the mini-batch.
                for part in self._micro(share.samples):
                    micro = MiniBatch(share.samples[part], share.old[part], share.target[part], share.count)
                    loss = self._loss(step, micro)
                    self.optimizer.backward(loss.total)
                    report.add(loss)
                report.losses.append(self.optimizer.take_loss())
                report.grad_norms.append(self.optimizer.step(self.recorder.own_time))
        with self.recorder.own_time():
            trained = report.close(self._trained_digests())
        if self.optimizer.log is not None:
            self.optimizer.log.record(self.recorder, self.name, step, shares, trained.digest)
        return trained

    def _before_training(self) -> None:
        """Keep what the training overwrites and is needed later."""

    def _loss(self, step: int, micro: MiniBatch) -> Loss:
        """Return the loss of a micro-batch, of which `count` is that of its whole mini-batch, and record its shapes."""
        raise NotImplementedError

    def _trained_digests(self) -> dict[str, str]:
        """Return the digests of the weights."""
        raise NotImplementedError
