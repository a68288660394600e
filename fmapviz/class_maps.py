"""Differentiate class scores after a forward pass, and draw what the views want of it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, TypeVar

from fmapviz.automatic import NoMapError
from fmapviz.classifiers import Pooling
from fmapviz.findings import Found, Round
from fmapviz.gradients import BackwardError, begin_graph, edge_of, gradients_at
from fmapviz.keeping import keep
from fmapviz.shapes import NotAMapError
from fmapviz.sketches import sketch
from fmapviz.spots import automatic_spots, given_spots
from fmapviz.tape import AgainError, Tape
from fmapviz.targets import TOP1, before_softmax, class_scores, indices_of, scores_at
from fmapviz.values import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor, nn
    from torch.autograd.graph import GradientEdge

    from fmapviz.automatic import Choices, Chosen
    from fmapviz.options import Style
    from fmapviz.places import Place
    from fmapviz.plan import Draw, Method, Plan
    from fmapviz.spots import Spots
    from fmapviz.targets import ClassScores, Wanted
    from fmapviz.values import Of

_Result = TypeVar("_Result")
_TRIES = 4  # at most: because of where a graph begins, of a failing backward pass, of layers that were overwritten


class ClassMaps:
    """Draws what views want of class scores and their gradients.

    Args:
        network: Whose.
        plan: What they want.
        classes: The classes' names.
        style: How gradients look.
        choices: What is chosen automatically.

    Attributes:
        exact: Whether the weights of a classifier are needed.
    """

    def __init__(self, network: nn.Module, plan: Plan, classes: Sequence[str], *, style: Style, choices: Choices) -> None:
        self._network = network
        self._plan = plan
        self._classes = classes
        self._style = style
        self._choices = choices
        self._of_layers = {view: method for view, method in plan.methods.items() if not method.of_pixels}
        self._of_pixels = {view: method for view, method in plan.methods.items() if method.of_pixels}
        self.exact = any(method.exact for method in plan.methods.values())
        self._searches = bool(plan.automatic and self._of_layers)

    def begin(self, batch: Tensor, *, ordered: bool, chosen: Chosen | None = None) -> tuple[Tape, Tensor]:
        """Begin a forward pass.

        Args:
            batch: Prepared images `(N, ...)`.
            ordered: See `Tape`.
            chosen: What another pass over this very batch has shown.

        Returns:
            A tape for it, and what the network is to be given.
        """
        chosen = chosen or (self._choices.of(batch.shape) if self._searches else None)
        search = self._searches and chosen is None
        given, late = batch, self._plan.of_classes and not (search or self._plan.from_pixels or self._choices.early)
        if self._plan.of_classes and not late:
            batch, given = begin_graph(batch)
        tape = Tape(self._network, batch, late=late, ordered=ordered)
        tape.chosen = chosen or tape.chosen
        tape.places.begin(names=None if search else tape.chosen.names, heads=self.exact)
        return tape, given

    def repeat(self, run: Callable[[Chosen | None], _Result]) -> _Result:
        """Run a forward pass and draw, and once more if that has shown that it has to be done otherwise.

        Args:
            run: Given what to `begin` with; may raise AgainError, which only the first image of some networks does.
        """
        chosen = None
        for _ in range(_TRIES):
            try:
                return run(chosen)
            except AgainError as again:
                self._choices.early = self._choices.early or again.early
                chosen = again.chosen
        raise AssertionError("the same reason twice")

    def draw(self, tape: Tape) -> Found:
        """Draw everything.

        Args:
            tape: A forward pass that has ended.

        Raises:
            RequestError: No class scores in the output, no gradient, no map, or no such class or layer.
            BackwardError: The backward pass failed.
            AgainError: It will do better after another forward pass.
        """
        found = Found(tape.images)
        wanted = self._plan.wanted
        if not wanted and not self._searches:
            self._draw_classless(tape, given_spots(self._of_layers, tape, None, found), found)
            return found
        scores = class_scores(tape.output, key=self._plan.output, images=tape.images)
        if wanted and scores.logits:
            found.remarks.append("the network ends with a softmax or sigmoid: the logits before it are differentiated")
        elif wanted and scores.probable:
            found.remarks.append("the network returns probabilities: these are differentiated, not logits")
        pooling = self._pooling(tape, scores, found)
        classes: dict[tuple[int | None, ...], list[Wanted]] = defaultdict(list)  # top1 and star may be the same
        for each in wanted or (TOP1,):
            classes[tuple(indices_of(scores, each))].append(each)
        if self._searches:
            first = next((own for own in classes if any(index is not None for index in own)), (None,) * tape.images)
            spots = self._automatic_spots(tape, scores, first, pooling=pooling, found=found)
        else:
            spots = given_spots(self._of_layers, tape, pooling, found)
        self._draw_classless(tape, spots, found)
        for number, (indices, alike) in enumerate(classes.items() if wanted else ()):
            more = number + 1 < len(classes)
            self._draw_class(tape, found, scores, alike, indices, spots=spots, pooling=pooling, more=more)
        found.tell_missing(_why_missing(scores))
        return found

    def _automatic_spots(
        self, tape: Tape, scores: ClassScores, indices: Sequence[int | None], *, pooling: Pooling | None, found: Found
    ) -> Spots:
        methods = self._of_layers
        try:
            return automatic_spots(methods, tape, scores, indices=indices, pooling=pooling, choices=self._choices)
        except NoMapError as reason:
            found.undrawn[", ".join(methods)] = str(reason)
            return dict.fromkeys(methods, ())

    def _pooling(self, tape: Tape, scores: ClassScores, found: Found) -> Pooling | None:
        if not self.exact:
            return None
        if not bool(scores.values.isfinite().all()):
            found.tell_all("no cam: the class scores are not finite")
            return None
        return Pooling(tape, scores)

    def _draw_classless(self, tape: Tape, spots: Spots, found: Found) -> None:
        each = Round(tape, found, [None] * tape.images)
        for view, method in self._of_layers.items():
            for place in () if method.targets else spots[view]:
                self._draw_heat(each, view, method, place)

    def _draw_class(
        self,
        tape: Tape,
        found: Found,
        scores: ClassScores,
        alike: Sequence[Wanted],
        indices: Sequence[int | None],
        *,
        spots: Spots,
        pooling: Pooling | None,
        more: bool,
    ) -> None:
        """Draw everything of one class of each image, which was asked for in one or several ways, by one backward pass."""
        for wanted in alike:
            found.miss(wanted.label, [index is None for index in indices])
        if all(index is None for index in indices):
            return
        values = scores_at(scores, indices)
        before = before_softmax(scores, indices)
        gradients = self._gradients(tape, alike, values, indices, spots=spots, more=more, before=before)
        for wanted in alike:
            targets = [self._target(wanted, *each, scores) for each in zip(indices, values.tolist(), strict=True)]
            each = Round(tape, found, targets, gradients)
            if wanted in self._plan.targets:
                self._draw_gradients(each, "gradient", tape.outputs, self._plan.gradients)
                self._draw_gradients(each, "input gradient", tape.inputs, self._plan.input_gradients)
            for view, method in self._of_layers.items():
                for place in spots[view] if wanted in method.targets else ():
                    exact = pooling.of(place, [index or 0 for index in indices]) if pooling and method.exact else {}
                    self._draw_heat(each, view, method, place, exact)
            for view, method in self._of_pixels.items():
                if wanted in method.targets:
                    self._draw_pixels(each, view, method)

    def _target(self, wanted: Wanted, index: int | None, score: float, scores: ClassScores) -> Target | None:
        if index is None:
            return None
        known = len(self._classes) == scores.values.shape[1] or (scores.open_ended and index < len(self._classes))
        return Target(wanted.label, index, self._classes[index] if known else "", score)

    def _gradients(
        self,
        tape: Tape,
        alike: Sequence[Wanted],
        values: Tensor,
        indices: Sequence[int | None],
        *,
        spots: Spots,
        more: bool,
        before: tuple[GradientEdge, Tensor] | None,
    ) -> dict[int, Tensor | None]:
        """Differentiate once for all views, by the identity of the places, and of the tape for the input."""
        places = [
            place
            for view, method in self._of_layers.items()
            if "gradients" in method.needs and not set(alike).isdisjoint(method.targets)
            for place in spots[view]
        ]
        if not set(alike).isdisjoint(self._plan.targets):
            places += tape.outputs if self._plan.gradients else []
            places += tape.inputs if self._plan.input_gradients else []
        known = {id(place): tape.known.get((place.identity, tuple(indices))) for place in places}
        edges: dict[int, GradientEdge | None] = {id(place): place.edge for place in places}
        if any(not set(alike).isdisjoint(method.targets) for method in self._of_pixels.values()):
            edges[id(tape)] = edge_of(tape.pixels)
        if all(known.get(key) is not None for key in edges):
            return known
        try:
            gradients = gradients_at(values, list(edges.values()), more=more, before=before)
        except BackwardError:
            if not tape.late:
                raise
            # A graph that begins within what runs under `torch.utils.checkpoint`, say.
            raise AgainError(early=True) from None
        return dict(zip(edges, gradients, strict=True))

    def _draw_gradients(self, each: Round, of: Of, places: Sequence[Place], views: Mapping[str, Draw]) -> None:
        for place in places if views else ():
            gradient = each.gradients.get(id(place))
            if gradient is None:
                each.found.note(views, place, each.tape.why_no_gradient(place))
                continue
            try:
                if self._plan.kept:
                    batch = keep(
                        place.feature_map, gradient, self._plan.kept, images=each.tape.images, of=of, targets=each.targets
                    )
                    each.found.kept.append(batch)
                for suffix, maps in each.tape.views(place.feature_map, gradient).items():
                    drawn = sketch(
                        place.feature_map,
                        maps,
                        self._plan,
                        self._style,
                        images=each.tape.images,
                        suffix=suffix,
                        of=of,
                        targets=each.targets,
                    )
                    each.found.sketches.append(drawn)
                    for why in drawn.undrawn.values():
                        each.found.note(views, place, why)
            except NotAMapError as reason:
                if self._plan.drawn or not self._plan.kept:
                    each.found.note(views, place, str(reason))

    def _draw_heat(
        self, each: Round, view: str, method: Method, place: Place, exact: Mapping[str, Tensor] | None = None
    ) -> None:
        tape = each.tape
        captured = {"activations": tape.maps(place, place.values), **(exact or {})}
        if "gradients" in method.needs:
            gradient = each.gradients.get(id(place))
            if gradient is None:
                each.found.note([view], place, tape.why_no_gradient(place))
                return
            captured["gradients"] = tape.maps(place, gradient)
            if bool(gradient.any()) and not bool(captured["gradients"].any()):
                each.found.note([view], place, tape.why_only_prefix())
                return
        raw = method.apply(**captured)
        frames = tape.frames(place, place.values)
        each.add(view, method, place, raw.reshape(*raw.shape[:2], frames, -1).mean(2), automatic=self._searches)

    def _draw_pixels(self, each: Round, view: str, method: Method) -> None:
        gradient = each.gradients.get(id(each.tape))
        if gradient is None:
            each.found.undrawn[view] = "the class score does not depend on the input, or not by anything with a gradient"
        else:
            each.add(view, method, None, method.apply(pixel_gradients=gradient), automatic=False)


def _why_missing(scores: ClassScores) -> str:
    if scores.of_pixels or scores.open_ended:
        return "the network sees no such class in the picture"
    return f"the network tells {scores.values.shape[1]} classes only"
