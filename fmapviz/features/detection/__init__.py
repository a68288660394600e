"""Detectors: the boxes that they find, by the post-processing of each family."""

from fmapviz.core.members import Contribution, Detector, View

CONTRIBUTION = Contribution(
    examples=(("fmapviz best.pt photo.jpg --view boxes,layercam --target box1 --to html", "a box of your YOLO, and why"),),
    views=(
        View(
            name="boxes",
            help="The input with the boxes that a detector finds, class and score of each.",
            looks=("scale", "text_size"),
            options=("confidence",),
            observe="fmapviz.features.detection.picture:observe_boxes",
            scaled=False,
            words="detections bounding-boxes bboxes bbox detect",
        ),
    ),
    detectors=(
        Detector(
            name="yolo",
            help="Networks of ultralytics: YOLO and RT-DETR.",
            classes=r"ultralytics\.nn\.tasks\.(Detection|Segmentation|Pose|OBB|RTDETRDetection)Model",
            others=r"ultralytics\.nn\.tasks\.DepthModel",
            feeds="fmapviz.features.detection.yolo:feeds",
            read="fmapviz.features.detection.yolo:read",
        ),
        Detector(
            name="torchvision",
            help="The detectors of torchvision: Faster, Mask and Keypoint R-CNN, RetinaNet, FCOS, SSD.",
            classes=r"torchvision\.models\.detection\.(faster_rcnn\.FasterRCNN|retinanet\.RetinaNet|fcos\.FCOS|ssd\.SSD)",
            captures=("transform", "rpn", "roi_heads.box_predictor", "head", "anchor_generator"),
            thresholds=("score_thresh", "roi_heads.score_thresh"),
            feeds="fmapviz.features.detection.torchvision:feeds",
            read="fmapviz.features.detection.torchvision:read",
        ),
        Detector(
            name="transformers",
            help="The detectors of Hugging Face: DETR and its successors, YOLOS.",
            classes=r"transformers\.models\.\w+\.\w+\.(\w+ForObjectDetection|DetrForSegmentation|RfDetrForInstanceSegmentation)",
            read="fmapviz.features.detection.transformers:read",
        ),
    ),
)
