"""The page: whole, self-contained, escaped, readable in both themes, and small."""

import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import numpy as np
import pytest

from collectives import load_cluster
from neuron_dist.simulation import drawings, report
from neuron_dist.simulation.analysis import analyse
from neuron_dist.simulation.busy import Busy
from neuron_dist.simulation.links import link_use
from neuron_dist.simulation.topology_svg import pictures
from neuron_dist.simulation.trace import read
from tests.simulation.test_figures import ledger
from tests.simulation.training_runs import Program, dense_run, fsdp_run

VOID = {"meta", "link", "br", "input", "img"}


class Page(HTMLParser):
    """Elements with their attributes; raises where tags do not close in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.words, self.style = [], [], [], ""
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1] == "style":
            self.style += data
        else:
            self.words.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def svgs(text):
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.S)]


@pytest.fixture(scope="module")
def text(analysis, traces):
    return report.render(analysis, analyse(traces), [("links twice as fast", 400_000.0)])


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def test_it_needs_nothing_from_outside(page, text):
    for tag, attributes in page.elements:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:,")), f"<{tag} {name}={value}>"
    assert not {"script", "iframe", "object", "embed", "img"} & {tag for tag, _ in page.elements}
    assert "url(" not in page.style and "@import" not in page.style
    assert "http" not in re.sub(r'xmlns="http://www.w3.org/2000/svg"', "", text)


def test_all_that_is_promised_is_there(page, analysis):
    headings = {attributes["id"] for attributes in page.all("h2")}
    assert headings == {
        "split", "steps", "lanes", "communication", "links", "hbm", "kernels", "whatif", "fidelity", "assumptions",
    }  # fmt: skip
    for words in (
        "528 us", "31.1 %", "mean of steps 2 to 3; the first is left out", "contended",
        "mesh_dp", "mesh_tp", "core 0 out", "24 GiB", "rank 3", "aten::_fused_adamw_", "links twice as fast",
        "train.py:41", "torch.float64 has no format on TensorE <use float32>", "trn2.48xlarge (LNC 2)",
    ):  # fmt: skip
        assert words in page.text, words
    spec = analysis.cluster.spec
    for entry in [*spec["assumptions"].values(), *spec["fitted"].values()]:
        assert " ".join((entry.get("source") or entry["fitted_to"]).split()) in page.text
    for name, source in spec["sources"].items():
        assert name in page.text and " ".join(source.split()) in page.text


def test_only_simulated_time_is_spoken_of(page):
    for heading in (
        "Simulated step time",
        "Where a simulated step goes",
        "Simulated steps",
        "Every time on this page is",
    ):
        assert heading in page.text
    assert "wall" not in page.text.lower()


def test_pictures_are_well_formed_and_say_what_they_are(text, page):
    found = svgs(text)
    assert len(found) == 3
    for svg in found:
        assert svg.attrib["role"] == "img" and svg[0].tag.endswith("title") and svg[0].text
    bars = [a for a in page.all("div") if a.get("class") == "bar"]
    assert len(bars) == 4 and all(b["role"] == "img" and b["aria-label"] for b in bars)
    regions = [a for a in page.all("div") if a.get("class") == "scroll"]
    assert all(r["tabindex"] == "0" and r["aria-label"] for r in regions)


def test_tables_and_drawings_scroll_in_boxes_of_their_own(text):
    for tag in ("<table", "<svg"):
        for match in re.finditer(tag, text):
            assert text.rfind('<div class="scroll"', 0, match.start()) > text.rfind(
                "</section>", 0, match.start()
            )


def test_ids_are_unique_and_rows_as_wide_as_their_header(page, text):
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids))
    for table in re.findall(r"<table>.*?</table>", text, re.S):
        columns = table.count("<th ")
        for row in re.findall(r"<tr[ >].*?</tr>", table.split("<tbody>")[1], re.S):
            assert row.count("<td") == columns, row


def test_shares_of_bars_add_up(text):
    for bar in re.findall(r'<div class="bar".*?</div>', text):
        widths = [float(w) for w in re.findall(r"width:([\d.]+)%", bar)]
        assert sum(widths) == pytest.approx(100, abs=0.01)


def test_everything_is_escaped(tmp_path):
    evil = "<script>alert(1)</script>&\"'"
    program = Program(tmp_path, 2, command=evil)
    program.group(evil, [[0, 1]])
    for rank in program.ranks:
        rank.kernel(evil, flops=10**9)
        rank.hold(evil, 1 << 20)
        rank.report("rule", "<b>site</b>", "<i>message</i>")
    program.wait(program.collective("all_reduce", evil, 1 << 20))
    program.step()
    text = report.render(analyse(read(program.close())), None, [(evil, 1.0)])
    assert "<script" not in text and "<b>" not in text and "<i>message" not in text
    assert Page(text).text.count("<script>alert(1)</script>&\"'") >= 5


def test_optional_parts_are_left_out(analysis):
    page = Page(report.render(analysis))
    headings = {attributes["id"] for attributes in page.all("h2")}
    assert "whatif" not in headings and "optimistic bound" in page.text
    assert "with links shared" not in page.text


def test_the_same_run_gives_the_same_page(analysis, traces, text):
    assert (
        report.render(analyse(traces), analyse(traces), [("links twice as fast", 400_000.0)])
        == text
    )


@pytest.mark.parametrize(
    ("product", "instances", "ranks", "drawn"),
    [
        ("trn1.2xlarge", 1, 2, 1), ("trn2.48xlarge", 1, 16, 1), ("trn2.48xlarge", 6, 384, 4),
        ("trn2-ultraserver", 1, 64, 1), ("trn3-gen1", 1, 64, 1), ("trn3-gen2", 1, 64, 1),
    ],
)  # fmt: skip
def test_every_network_is_drawn_with_its_hot_link(product, instances, ranks, drawn):
    from neuron_dist.simulation.figures import Traffic

    cluster = load_cluster(product, instances=instances)
    traffic = (Traffic(tuple(range(ranks)), "mesh_dp", "all_gather", "ring", 0, 1, 1 << 30, 10**6),)
    use = link_use(ledger(cluster=cluster, traffic=traffic, traffic_ns=10**9))
    found, left = pictures(use)
    assert len(found) == drawn and bool(left) == (instances > drawn)
    texts = [svg for _, svg in found]
    for svg in map(ElementTree.fromstring, texts):
        width, height = (float(v) for v in svg.attrib["viewBox"].split()[2:])
        for element in svg.iter():
            for key, most in (
                ("x", width),
                ("x2", width),
                ("cx", width),
                ("y", height),
                ("y2", height),
                ("cy", height),
            ):
                assert 0 <= float(element.attrib.get(key, 0)) <= most
    marks = sum(len(re.findall(r'class="ring"|[" ]hot"', svg)) for svg in texts)
    assert marks == 1, marks
    titles = " ".join(texts)
    per_instance = use.topology.links_per_instance
    shown = [
        n.replace("->", "-&gt;")
        for n in use.topology.link_names[:per_instance]
        if instances > 1 or "EFA" not in n
    ]
    assert all(f"{name}: " in titles for name in shown) or instances > drawn


def test_lanes_are_exact_while_few_and_by_pixel_when_many():
    compute = np.array([[0, 250], [500, 750]], np.int64)
    svg = drawings.lanes_svg([0], [Busy(compute, compute[:0])], 0, 1000, None, "t")
    assert f'd="M{drawings.GUTTER}.0 28.5h250.00M{drawings.GUTTER + 500}.0 28.5h250.00"' in svg
    starts = np.arange(0, 1_000_000, 100)
    half = np.stack([starts, starts + 50], axis=1)
    svg = drawings.lanes_svg([0], [Busy(half, half[:0])], 0, 1_000_000, None, "t")
    assert f'class="c l2" d="M{drawings.GUTTER} 28.5h1000"' in svg  # half busy everywhere


def test_ticks_are_round_and_few():
    assert drawings.ticks(1000) == [0, 200, 400, 600, 800, 1000]
    assert drawings.ticks(7) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert drawings.ticks(0) == [0]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_contrast(page, scheme):
    blocks = re.findall(r":root \{(.*?)\}", page.style, re.S)
    colours = dict(
        re.findall(r"--([\w-]+): (#[0-9a-f]{6});", blocks[0 if scheme == "light" else 1])
    )
    for words, ground in (("text", "bg"), ("text", "panel"), ("muted", "bg"), ("muted", "panel")):
        assert contrast(colours[words], colours[ground]) >= 4.5
    for mark in ("compute", "exposed", "u2" if scheme == "dark" else "u3", "u5", "ring"):
        assert contrast(colours[mark], colours["bg"]) >= 3
    assert contrast(colours["compute"], colours["exposed"]) != 1
    assert contrast(colours["exposed"], colours["overlapped"]) >= 1.5  # told apart without hue


def contrast(a, b):
    """WCAG's contrast of two colours."""

    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_big_runs_stay_small(tmp_path):
    traces = read(dense_run(tmp_path, ranks=64, pairs=520, steps=2))
    assert sum(len(t.records) for t in traces) > 190_000
    text = report.render(analyse(traces))
    assert len(text.encode()) < 3_000_000
    Page(text)


def test_more_ranks_than_are_drawn(tmp_path):
    found = analyse(
        read(
            fsdp_run(tmp_path, ranks=96, tp=8, steps=2, layers=1, cluster=load_cluster(instances=2))
        )
    )
    page = Page(report.render(found))
    assert "64 of 96 ranks are drawn" in page.text and "32 more ranks are not shown" in page.text
    assert f"rank {found.critical_rank} *" in page.text
