"""What is kept of TorchTitan's metrics, and the lines that end a run."""

from pathlib import Path

from neuron_dist.titan.summary import Recorder, summary


def test_steps_and_validation_are_told() -> None:
    recorder = Recorder()
    for step, loss in ((1, 8.0), (5, 6.5), (10, 5.25)):
        recorder.log(
            {
                "loss_metrics/global_avg_loss": loss,
                "time_metrics/end_to_end(s)": step / 10,
                "memory/max_reserved(GiB)": 0.5,
            },
            step,
        )
    for step, loss in ((5, 6.75), (10, 5.5)):
        recorder.log(
            {"validation_metrics/loss": loss, "validation_metrics/memory/max_reserved(GiB)": 0.75}, step
        )
    assert recorder.losses == {1: 8.0, 5: 6.5, 10: 5.25}
    text = summary("mine", "fsdp 2", "neuron", [Recorder(), recorder], 1, "of HBM", Path("logs"))
    assert "loss    8.00000 -> 5.25000" in text
    assert "valid   loss 5.50000 after step 10" in text
    assert "0.75 GiB of HBM, peak of rank 1" in text
    assert "time    0.750 s a step (median)" in text


def test_a_run_without_steps() -> None:
    text = summary("mine", "single", "neuron", [Recorder()], 0, "of HBM", Path("logs"))
    assert "steps   none" in text and "valid" not in text
